"""`python -m autoddl` is the `autoddl` command; the launcher starts it so on every rank."""

from .cli import main

main()
