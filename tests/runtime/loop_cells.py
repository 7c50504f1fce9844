"""What a training loop may have, by plans of two kinds: cases of `workers/loop.py`, cell by cell.

Every case has a schedule. Each is compared with one process, to 1e-6: losses, norms, parameters,
averages, scores; one that goes on by the same plan with the run that was not interrupted, to the
bit.
"""

from typing import Any

PLACES: dict[str, dict[str, Any]] = {
    "2x2": {"seed": 0},
    "2 stages": {"stages": 2, "micro_batches": 4},
}
_OTHERS = {  # by which training goes on
    "2x2": [{"nodes": 1, "gpus": 4, "seed": 4}, {**PLACES["2 stages"], "seed": None}],
    "2 stages": [{"stages": None, "seed": 0}, {"stages": None, "nodes": 1, "gpus": 4, "seed": 4}],
}
_CELLS: dict[str, dict[str, Any]] = {
    "schedule": {},
    "clipping": {"clip": 0.3},
    "adam": {"optimizer": "adam"},
    "groups": {"optimizer": "groups"},
    "average": {"ema": 0.7},
    "evaluation": {"scored": [8, 3]},
}
MODELS = "perceptron", "transformer"


def cases(place: str) -> list[dict[str, Any]]:
    """Each cell alone, and all of them together, interrupted."""
    own, found = PLACES[place], list[dict[str, Any]]()
    every = {key: value for cell in _CELLS.values() for key, value in cell.items()}
    for model in MODELS:
        found += [{"model": model, **own, **cell} for cell in _CELLS.values()]
        # A transformer's output with averages is after six such steps in one process in float32
        # 1.2e-6 from the same in float64, ours by a drawn plan 2.4e-7.
        whole = {**every, "exact": model == "transformer"}
        for more in ({"optimizer": "adam"}, whole):
            again = {"model": model, "steps": 2, **own, **more}
            found.append({**again, "then": _OTHERS[place]})
            found.append({**again, "then": [{}], "uninterrupted": True})
    return found
