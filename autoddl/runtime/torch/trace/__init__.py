"""From a `torch.nn.Module` to a `Graph`, by `torch.export`."""
