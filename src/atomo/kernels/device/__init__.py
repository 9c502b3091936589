"""The hot loops as PyTorch operations, for tensors on any device: the contracts of `cpu`."""
