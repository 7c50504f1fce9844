"""Programs that show autoddl at work; run them from the top of the repository."""
