"""Parts of headline_times.py."""
