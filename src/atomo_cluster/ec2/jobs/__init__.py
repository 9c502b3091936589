"""Training jobs on the master."""
