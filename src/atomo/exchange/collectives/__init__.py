"""Collectives over a transport, and the hosts that ranks are on."""
