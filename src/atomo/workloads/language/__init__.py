"""The next word of a text."""
