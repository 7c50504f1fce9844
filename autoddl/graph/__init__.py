"""The traced model: operators, tensors, repeated regions, and how it is cut."""
