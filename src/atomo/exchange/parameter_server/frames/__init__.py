"""Frames between the master and workers: their layout, checks, routing and refusal."""
