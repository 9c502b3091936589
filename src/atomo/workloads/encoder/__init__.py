"""Sentences of one class each, by a pretrained Transformer encoder."""
