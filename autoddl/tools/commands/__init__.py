"""Commands of `autoddl` that stand in files of their own."""
