"""Codecs that send every entry, in 32 or 16 bits."""
