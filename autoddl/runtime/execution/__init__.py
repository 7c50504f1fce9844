"""A plan as a program of operators and steps, and what runs it forward and backward."""
