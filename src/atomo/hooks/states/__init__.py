"""States of hooks in checkpoints of other programs, and over another number of ranks."""
