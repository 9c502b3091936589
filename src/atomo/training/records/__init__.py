"""Records of a run: metrics, progress, plans, causes of divergence."""
