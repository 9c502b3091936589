"""Parts of an optimizer that a hook takes over: momentum, weight decay, Adam, noise damping."""
