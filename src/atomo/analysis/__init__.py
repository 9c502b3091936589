"""Measurements of gradients: the cost and the error of codecs."""
