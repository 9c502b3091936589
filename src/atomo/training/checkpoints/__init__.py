"""Checkpoints: files, manifests, the index, resumes."""
