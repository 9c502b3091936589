"""Every entry travels, rounded at random to one of a few levels."""
