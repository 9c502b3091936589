"""Commands on whole clusters: launch, states, fuses and shutdown."""
