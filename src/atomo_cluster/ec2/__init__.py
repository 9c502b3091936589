"""Clusters on EC2: launched with one command, and never left running by accident.

A cluster is what carries its tags: its name and its owner. Nothing else in the account is ever
touched, and a cluster is gone once a search for its tags finds nothing that is alive.
`tools/pytorch_ec2.py` is the command, and `pytorch_ec2.py` where Atomo is installed; boto3 and
PyYAML come with `pip install -e '.[ec2]'` in the checkout.
"""
