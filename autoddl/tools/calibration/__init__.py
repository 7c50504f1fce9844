"""Measured prices: what to measure, the record of it, the fit, and the machine file from both."""
