"""Training: the master, the workers, their checkpoints, and the evaluator that follows them."""
