"""The hot loops: `cpu` in numba for tensors on the CPU, `device` in PyTorch for any device.

Both have the same names and the same contracts. Nobody else imports numba or triton.
"""
