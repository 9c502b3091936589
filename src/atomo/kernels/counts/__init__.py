"""The largest of some bytes, and the number of bytes equal to a code in each run."""
