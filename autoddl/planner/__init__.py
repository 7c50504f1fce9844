"""A graph and a cluster to a plan."""
