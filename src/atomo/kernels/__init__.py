"""Hot loops. Each folder is a kernel: `__init__` is its contract, and the other files are backends.

`cpu` (numba) serves tensors on the CPU, `cuda` (Triton) those on CUDA where the folder has it, and
`reference` (plain PyTorch operations) those on any other device. All backends of a kernel have the
same functions with the same arguments; `backend(tensor)` of the folder returns the backend for the
tensor's device. No module outside this package imports numba or triton.
"""
