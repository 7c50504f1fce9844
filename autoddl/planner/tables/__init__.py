"""A graph and a cluster to the tables of a search `Problem`."""
