"""Hosts: keys, ssh, set-up, file transfers, stop and start."""
