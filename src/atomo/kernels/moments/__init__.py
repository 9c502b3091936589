"""The largest magnitude and the sum of squares of each run of entries, for Triton's ways."""
