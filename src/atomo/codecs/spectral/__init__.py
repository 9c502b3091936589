"""ATOMO: a few atoms of a basis, drawn without bias; the code to find, draw and encode them."""
