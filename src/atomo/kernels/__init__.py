"""The hot loops, a folder an idea: `__init__` says what it promises, and each other file is a way.

`numba_way` serves tensors on the CPU and `torch_way`, in plain PyTorch operations, those on any
other device; `triton_way`, where there is one, those on CUDA. All have the same functions with the
same arguments, and `backend(tensor)` of the folder is the one that serves a tensor's device.
Nobody else imports numba or triton.
"""
