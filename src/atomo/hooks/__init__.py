"""Other people's training loops: PyTorch's DistributedDataParallel, and loops of one's own."""
