"""The folder of a run: its owner, its lock, its settings."""
