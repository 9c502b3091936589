"""Optimizers that average their momentum with one bit an entry."""
