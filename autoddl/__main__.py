"""`python -m autoddl` is the `autoddl` command; the launcher starts it so on every rank."""

from .tools.cli import main

main()
