"""The k-th largest magnitude and the k largest by radix, for the Triton backends, without a wait.

A magnitude's bits are three digits: one histogram of the high ones, one of the middle ones of those
that share the high one of the k-th, one of the low ones. All stays on the device, sizes too: how
many entries a vector holds may be known there alone.
"""
