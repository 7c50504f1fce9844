"""What torch holds of a planned step; nothing here imports torch."""
