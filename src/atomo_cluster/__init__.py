"""Clusters to train on: `ec2` launches hosts on EC2, `virtual` makes them on one machine.

A package beside the library: it imports nothing of `atomo`, and so neither PyTorch nor numpy, for a
command that lists hosts should not take as long as one that trains. `virtual` needs nothing that is
not in Python. `tools/pytorch_ec2.py` and `tools/virtual_cluster.py` are the commands.

errors < names < arguments, program < ec2, virtual
"""
