"""Settings of a training run: their values, files, bounds, checks, effects and identity."""
