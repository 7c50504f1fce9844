"""Traces an `oneflow.nn.Module` to a `Graph`."""
