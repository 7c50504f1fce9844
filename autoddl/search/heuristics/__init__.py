"""Searches that prove no bound, and the exhaustive one: the rivals of AutoDDL section 4.4."""
