"""A few entries travel, and the rest waits in a memory."""
