"""Access to AWS: calls, tags, permissions, and the resources of a cluster."""
