"""States of hooks in the checkpoints of other programs, also with another number of ranks."""
