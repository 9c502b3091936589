"""One bit an entry, and one or two scales."""
