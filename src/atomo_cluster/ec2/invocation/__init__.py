"""One invocation of a command: its options, settings and output."""
