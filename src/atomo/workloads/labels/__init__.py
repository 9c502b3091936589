"""Samples with any number of labels out of very many."""
