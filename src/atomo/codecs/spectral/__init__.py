"""ATOMO: a few atoms of a basis, drawn without bias; and what finds, draws and writes them."""
