"""Clusters on EC2: launched with one command, and never left running by accident.

The tags of a cluster (its name and its owner) define which resources belong to it. No command
changes a resource without these tags. A cluster has ended when a search for its tags finds no
living resource. The command is `tools/pytorch_ec2.py` in a checkout, and `pytorch_ec2.py` where the
distribution `atomo-cluster` is installed. `pip install -e '.[ec2]'` in the checkout installs boto3
and PyYAML.

settings < aws < invocation < hosts < places < images < money < launch < targets < jobs < checks
< supervisor < commands < cli
"""
