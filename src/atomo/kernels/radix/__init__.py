"""The k-th largest magnitude and the k largest by radix, for the Triton backends, without a wait.

A magnitude's bits are three digits: one histogram counts the high digits, one the middle digits of
entries that share the k-th's high digit, one the low digits. All stays on the device, sizes too:
how many entries a vector holds may be known there alone.
"""
