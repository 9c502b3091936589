"""Parts of gpu.py."""
