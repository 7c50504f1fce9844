"""What a calibration measures, in which order, and the record of it."""
