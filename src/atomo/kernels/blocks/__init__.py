"""Blocks shared by the Triton backends: a vector, one block for each program, and sets of results.

A block that is whole is read and written without a mask, 16 bytes at a time. What programs of one
launch find is put in order by the next: each has counted its own, and the sum of the counts before
it is where it begins. No program waits for another one, so that nothing depends on their order.
"""
