"""The largest magnitude and the sum of squares of each run of entries, for the Triton backends."""
