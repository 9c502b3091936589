"""The planner of `--code auto` and `--fusion auto`, and new plans during a run."""
