"""Reductions: a module for each way to average a bucket without a master."""
