"""Times and emulates operators and collectives with OneFlow."""
