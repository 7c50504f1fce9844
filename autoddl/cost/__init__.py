"""Seconds and bytes of placed operators, redistributions and whole plans."""
