"""A plan to a training run: the only part that computes on devices."""
