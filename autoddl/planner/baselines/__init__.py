"""Known parallel schemes: as spaces to plan in, and priced at their best beside every plan.

`spaces.py` restricts the search to a scheme (`data_parallel`, `megatron`, `forced`); `pricing.py`
finds each family's best topology (`families.py`) by the ordinary search, on tables of all schemes.
"""

from .families import FAMILIES, Family, Variant, tried_again, variants
from .pricing import Baseline, BaselinePricer
from .spaces import LETTERS, Chosen, chosen, data_parallel, forced, megatron

__all__ = [
    "FAMILIES",
    "LETTERS",
    "Baseline",
    "BaselinePricer",
    "Chosen",
    "Family",
    "Variant",
    "chosen",
    "data_parallel",
    "forced",
    "megatron",
    "tried_again",
    "variants",
]
