"""Places for hosts: instance types, zones and networks."""
