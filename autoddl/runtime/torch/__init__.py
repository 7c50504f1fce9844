"""The back end for PyTorch, and the only part that imports torch."""
