"""Command modules: HELP, `arguments(parser)` and `run(run) -> exit code` each."""
