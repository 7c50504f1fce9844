"""Placements (Split, Broadcast, Partial) on a device mesh, operator rules, redistribution.

The families of operator rules (`rules/`) register themselves with the registry in `signature`,
through which everything else asks for a rule. They are imported here, so that the built-in ones are
there for whoever imports any part of this package; nothing else names them.
"""

from . import rules as rules
