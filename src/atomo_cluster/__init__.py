"""Clusters to train on: `ec2` launches hosts on EC2, `virtual` simulates them on one machine.

This package stands beside the library. It imports nothing of `atomo`, and so neither PyTorch nor
numpy: a command that lists hosts must start fast. `virtual` needs only Python's standard library.
`tools/pytorch_ec2.py` and `tools/virtual_cluster.py` are the commands. `../pyproject.toml` builds
the distribution `atomo-cluster` of this package.

errors < names < arguments, program < ec2, virtual
"""
