"""One module a command: HELP, `arguments(parser)` and `run(run) -> exit code`."""
