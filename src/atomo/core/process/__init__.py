"""The process that runs: its environment, memory, imports and exit codes."""
