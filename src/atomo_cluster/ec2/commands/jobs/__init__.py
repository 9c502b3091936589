"""Commands on training jobs."""
