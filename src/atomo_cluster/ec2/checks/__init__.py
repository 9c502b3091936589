"""Checks before a launch."""
