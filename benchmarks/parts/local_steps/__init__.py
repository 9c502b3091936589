"""Parts of local_steps.py."""
