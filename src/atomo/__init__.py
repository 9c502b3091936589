"""Data-parallel PyTorch training over MPI with compressed gradients."""
