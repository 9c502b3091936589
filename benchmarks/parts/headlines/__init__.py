"""Parts of headlines.py."""
