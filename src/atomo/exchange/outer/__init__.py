"""Rounds of local steps: the anchor, the outer optimizer that steps it, fragments, and when each is
exchanged. The averages themselves are those of an exchange.
"""
