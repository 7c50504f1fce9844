"""Faults put into training jobs: each must end the job in time, with its cause named."""
