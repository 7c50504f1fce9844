"""Processes of a job: they meet, are started and watched, and end together."""
