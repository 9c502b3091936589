"""Weights of networks from files."""
