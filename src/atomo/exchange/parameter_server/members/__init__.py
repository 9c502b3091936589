"""Members of a job with a master: assignments, failures, spares, states."""
