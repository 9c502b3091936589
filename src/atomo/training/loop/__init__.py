"""The loops of a master, of workers, and of replicas."""
