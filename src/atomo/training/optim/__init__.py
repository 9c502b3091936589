"""Update rules, learning rates, damping, averages of weights."""
