"""Plans and comparisons as tables and pages."""
