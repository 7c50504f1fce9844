"""Pipeline stages: what runs of layers cost, and where the model is cut."""
