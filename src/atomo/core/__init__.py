"""Foundations that know nothing of training: tables, names, arguments, devices, processes."""
