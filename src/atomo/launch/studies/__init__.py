"""Studies of several jobs: grids, sweeps, and jobs without a display."""
