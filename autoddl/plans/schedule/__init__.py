"""Pipeline schedules: lists of actions, simulated and verified."""
