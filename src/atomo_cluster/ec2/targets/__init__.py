"""Target hosts of commands, and commands on each of them."""
