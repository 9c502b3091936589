"""Commands on hosts: set-up, files, shells and images."""
