"""Parts of a worker's step: batches, passes, gradients."""
