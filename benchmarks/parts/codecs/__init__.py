"""Parts of codecs.py."""
