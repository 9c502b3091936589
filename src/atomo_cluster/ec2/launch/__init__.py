"""Launching: plans, attempts, orders and roll-back."""
