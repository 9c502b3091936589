"""Quantiles, clusters and hashed sums stand for the entries."""
