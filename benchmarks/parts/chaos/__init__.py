"""Parts of chaos.py."""
