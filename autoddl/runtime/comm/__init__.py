"""Local tensors on their way: collectives along mesh axes, redistribution, stages' transfers."""
