"""The evaluator, and its scores."""
