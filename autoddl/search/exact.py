"""The optimum and its proof: prices of memory, reduced costs and Pareto elimination.

Without a memory limit that binds, elimination alone finds the optimum (`elimination`). Else

1. the best price of memory p gives a lower bound (`lagrangian`), and the choices on the way, joined
   and improved (`local_search`), the best cost so far;
2. a choice within the limit that costs less than the best so far scores less than best + p limit.
   So a strategy goes unless some choice through it does (`reduced_costs`): no better choice has it;
3. with the strategies left, the best price again, and again fewer strategies;
4. what gap is left is closed by elimination with sets of Pareto-optimal (cost, memory) below rising
   ceilings on the cost (`pareto_elimination`), after dominated strategies have gone.

Where elimination leaves variables over, messages among these (`messages`) give a good choice, a
bound and the reduced costs. What gap is left then is closed below rising ceilings: pairs of the
variables become one (`reduced_costs`) until elimination takes all, and 4. follows. Should these
have too many strategies, an integer program decides (`integer_program`), if that is not too large.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .budget import Budget, Progress, TooMany
from .dominance import prune
from .elimination import eliminate, eliminated_along_chains
from .elimination_order import without_fixed_cycles
from .integer_program import program_columns, solve_program
from .lagrangian import Dual, approach, score_bound
from .local_search import descend
from .pareto_elimination import Least, least_within
from .problem import ROUNDING, Problem, SearchResult
from .reduced_costs import ReducedCosts, Restricted

# Of the integer program: a GPT with one layer of experts on four devices has 120,000 (9 s).
_MOST_COLUMNS = 200_000
# Gap from which on strategies are dropped, and at which a search ends that may leave a larger one:
# where 1 % is allowed, the first choice within that may be 1 % above the optimum (GPT of 32 blocks
# on 256 devices), and saves ten eliminations. 2e-4 and 1e-3 find the same on five GPTs, as fast.
_NEAR = 5e-4
# Pairs of cost and memory that are looked at, at most. A tenth gave the same plan of GPT-0.35B on
# 2x16; with ten times as many Mixtral-8x7B on 128x8 has the same plan and gap 68 s later.
_WORK = 500_000_000
# Below a ceiling at first; above it the next ceiling rises little. A fifth and four times as much,
# and small rises of 1.2 and 2, gave the same plan of GPT-0.35B on 2x16, in 0.9 to 1 of the time.
_QUICK_WORK = 5_000_000
# Pairs: from here on fewer cycles are worth their eliminations. GPT-36B on 256 devices takes 0.7 s
# for a gap of 0, and more than 60 s without them. A third of it is as fast on
# five GPTs; three times as much takes 1.4 times as long on GPT-0.35B.
_LONG = 300_000
_LOSS = ROUNDING  # relative: costs that differ by less count as equal
# Of the way from the bound to the best cost. GPT-36B on 256 devices keeps a gap of 9e-5 without
# ceilings that rise; GPT-0.35B takes twice as long from half or twice this one, and 1.5 to 1.8
# times as long where the ceiling rises by 6 or 2.
_FIRST_CEILING = 1 / 16
_RISE = 3.0
_SMALL_RISE = 1.4
# So often a ceiling falls, by so much of its rise. Without any fall HRNet and EfficientNet-B0 in
# half of their memory on 2x8, where elimination leaves variables, have the same plans, as fast.
_FALLS, _FALL = 1, 4.0


def auto(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """The optimum and its proof; when the budget ends, the best so far with a lower bound.

    None if no choice fits the memory limit (or none was found within the budget). The result's
    `algorithm` says what found the choice.
    """
    name = "elimination"
    with Progress(problem, budget) as run:
        name = prove(problem, run)
    if run.best is None and run.end == "budget":  # it was too small for any other choice
        run.offer(eliminate(problem, math.inf, frozenset()).expand_greedily())
    return run.result(name)


def prove(problem: Problem, run: Progress) -> str:
    """Offer the optimum to `run` and raise its bound to it; what found it."""
    run.spend()
    view = Restricted.of(problem)
    gap = min(run.budget.gap, _NEAR)
    if problem.free is None:
        solved = view.solved(0.0, run, gap)
        free = solved.choice, solved.short
        del solved  # its tables
    else:
        free = problem.free
    name = "messages" if view.leaves_variables else "elimination"
    run.raise_bound(score_bound(problem, free, 0.0))
    is_best = run.offer(free[0]) and (free[1] == 0.0 or run.is_good(gap))
    if is_best or run.bound >= problem.cost_limit:
        return name
    best = Dual(0.0, run.bound)
    for near in (_NEAR, 0.0):
        best = max(best, approach(view, run, near), key=lambda dual: dual.bound)
        if run.best is None and math.isfinite(run.bound):  # messages do not tell what fits
            _offer_least(problem, run)
        if run.best is None or run.bound >= problem.cost_limit or run.is_good(gap):
            return name
        smaller = view.below(best.price, min(run.cost, problem.known_cost) / (1 + gap), run)
        if smaller is None:  # nothing can be better than the best
            return name
        view = smaller
    if view.leaves_variables and run.budget.long_gap == math.inf:  # it fits, which is enough
        run.end = "size"
        return name
    try:
        if view.leaves_variables:
            _merge(view, run, best)
        elif not run.is_done:
            _close(view, run, best)
    except TooMany:
        cost = run.cost
        _solve_program(view, run)
        return "integer" if run.cost < cost else name
    return name


def _solve_program(view: Restricted, run: Progress) -> None:
    """Solve the integer program of what is left, unless its tables are too large."""
    smaller = view.among(prune(view.problem))
    if not view.leaves_variables or program_columns(smaller.problem) > _MOST_COLUMNS:
        run.end = "size"
        return
    run.raise_bound(min(solve_program(smaller, run), view.ceiling))


def _offer_least(problem: Problem, run: Progress) -> None:
    """Offer a choice of the least memory; raise the bound if that does not fit."""
    pairs = zip(problem.edge_cost, problem.edge_memory, strict=True)
    lightest = dataclasses.replace(
        problem,
        node_cost=problem.node_memory,
        node_memory=tuple(map(np.zeros_like, problem.node_memory)),
        edge_cost=tuple(np.where(np.isfinite(cost), memory, np.inf) for cost, memory in pairs),
        edge_memory=tuple(map(np.zeros_like, problem.edge_memory)),
        memory_limit=math.inf,
        cost_limit=math.inf,
        known_bound=-math.inf,
        known_cost=math.inf,
        free=None,
    )
    with Progress(lightest, dataclasses.replace(run.remaining, gap=0.0)) as least:
        prove(lightest, least)
    run.evaluations += least.evaluations
    if least.bound > problem.memory_limit:
        run.raise_bound(math.inf)
    elif least.best is not None:
        run.offer(descend(problem, least.best, spend=run.check)[0])


def _merge(view: Restricted, run: Progress, dual: Dual) -> None:
    """Search `view`, of which elimination leaves variables over, below rising ceilings.

    The lower a ceiling, the fewer pairs of strategies remain of two variables that become one; what
    grows too large is tried again below a lower one.
    """
    bound, step, falls = run.bound, (run.to_beat - run.bound) * _FIRST_CEILING, 0
    too_high = math.inf
    while bound < run.to_beat and not run.is_done:
        ceiling = min(bound + step, run.to_beat)
        if ceiling * (1 + _LOSS) >= too_high:  # it would be again
            raise TooMany
        found = view.below(dual.price, ceiling, run)
        try:
            _search_below(ceiling, found, run, dual)
        except TooMany:
            if falls == _FALLS:
                raise
            step, falls, too_high = step / _FALL, falls + 1, ceiling
            continue
        bound = ceiling
        run.raise_bound(min(ceiling, run.cost) * (1 - _LOSS))
        step *= _RISE


def _search_below(ceiling: float, view: Restricted | None, run: Progress, dual: Dual) -> None:
    """Offer the cheapest choice below the ceiling, if there is one. Raises TooMany."""
    while view is not None:
        view = view.loosened()
        is_whole = not view.leaves_variables
        if not is_whole:
            view = view.merged(dual.price, ceiling, run)
        if view is None:
            return
        dual = approach(view, run, 0.0)
        if run.is_done:
            return
        if is_whole:
            _close(view, run, Dual(dual.price, max(dual.bound, run.bound)))
            return
        view = view.below(dual.price, min(ceiling, run.to_beat), run)


def _close(view: Restricted, run: Progress, dual: Dual) -> None:
    """Search `view` by Pareto elimination below rising ceilings. Raises TooMany."""
    bound, gap, part = dual.bound, run.to_beat - dual.bound, _FIRST_CEILING
    may_be_long = not run.is_good(run.budget.long_gap)
    is_long = False
    alive = view.among(prune(view.problem))  # dominated: so below a lower ceiling, too
    ceiling = bound
    while ceiling < min(run.to_beat, view.ceiling):
        ceiling = min(bound + part * gap, run.to_beat, view.ceiling)
        smaller, looked = alive.below(dual.price, ceiling, run), 0
        if smaller is not None:
            try:
                most = _WORK if is_long else _QUICK_WORK
                found = _least(smaller.problem, run, dual.price, ceiling, most, is_long)
            except TooMany:
                if is_long:
                    raise
                if not may_be_long:
                    return
                is_long, ceiling = True, bound  # not as short as was hoped
                continue
            if found.choice is not None:  # the cheapest of all that cost less than the ceiling
                run.offer(smaller.original(found.choice))
                run.raise_bound(min(run.cost, ceiling) - _LOSS * ceiling)
                return
            run.raise_bound(ceiling - _LOSS * ceiling)
            looked = found.work
        is_long = may_be_long and looked > _LONG
        part *= _RISE if looked <= _QUICK_WORK else _SMALL_RISE


def _least(
    problem: Problem, run: Progress, price: float, ceiling: float, work: int, is_long: bool
) -> Least:
    """The cheapest choice below the ceiling. Raises TooMany.

    is_long: fronts will be, so the problem is loosened, to go along it. Short ones are made in
             fewer operations by halving chains of equal blocks.
    """
    if is_long:
        problem = without_fixed_cycles(problem)
    state = eliminated_along_chains(problem, price)
    options = price, ceiling, work, _LOSS * ceiling, run.check
    return least_within(problem, state, ReducedCosts(state), *options)
