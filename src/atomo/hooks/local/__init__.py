"""Local steps: replicas that train alone, and exchange what they have changed."""
