"""Displays of a run: panels, lines, and the closing table."""
