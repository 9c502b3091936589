"""Parts of an optimiser that a hook takes over: momentum, weight decay, Adam, noise damping."""
