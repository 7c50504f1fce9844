"""Programs around the planner: command line, reports, calibration, cluster in a box."""
