"""Data sets of photographs, and their preparation."""
