"""The back end for OneFlow 0.9.0, and the only part that imports oneflow."""
