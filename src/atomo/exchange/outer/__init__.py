"""The anchor of local steps, and rotations of what is exchanged.

Its optimizer and its rounds are in `options`; the averages are those of an exchange.
"""
