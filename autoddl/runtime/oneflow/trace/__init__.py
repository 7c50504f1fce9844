"""An `oneflow.nn.Module` to a `Graph`."""
