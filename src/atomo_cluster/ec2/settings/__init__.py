"""Settings of a cluster: the value, its validation, and its YAML file."""
