"""Placements (Split, Broadcast, Partial) on a device mesh, operator rules, redistribution."""
