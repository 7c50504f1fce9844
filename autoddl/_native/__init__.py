"""Planning's inner loops in C (`loops.c`), about ten times as fast as the same on arrays.

They are compiled when autoddl is installed. Where there was no compiler, arrays do the work, with
the same bits; so callers ask for `library.loops` and know another way.
"""
