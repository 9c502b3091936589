"""Sentences of one class each."""
