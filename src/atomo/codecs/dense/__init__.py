"""Every entry travels, as it is or in 16 bits."""
