"""The largest of some bytes, and how many of each run of them are a certain one."""
