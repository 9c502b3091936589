"""Blocks shared by the Triton backends: a vector, one block for each program, and sets of results.

A whole block is read and written without a mask, 16 bytes at a time. Results of the programs of a
launch are ordered by the next launch: each program has counted its results, and the sum of the
counts before it is its start. No program waits for another, so nothing depends on their order.
"""
