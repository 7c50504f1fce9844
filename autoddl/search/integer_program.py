"""The search as an integer program, solved by HiGHS through SciPy.

With x[v, s] = 1 if variable v takes strategy s and y[e, s, t] = 1 if edge e = (v, w) joins s and t:

    minimise    sum_v node_cost[v] x[v] + sum_e edge_cost[e] y[e]
    subject to  sum_s x[v, s] = 1                                   for every v
                sum_t y[e, s, t] = x[v, s],  sum_s y[e, s, t] = x[w, t]   for every e = (v, w)
                sum_v node_memory[v] x[v] + sum_e edge_memory[e] y[e] <= memory_limit
                x binary, y >= 0.

Dominated strategies go first, and edges between the same two variables become one. The solver's
bound proves how good the choice is, and that there is none if the program is infeasible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .budget import Budget, Progress
from .dominance import prune
from .local_search import descend
from .problem import ROUNDING, Choice, Problem, SearchResult, Table, draw
from .reduced_costs import Restricted

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult
    from scipy.sparse import csr_matrix

# The solver may miss the limit by its tolerance; rows are scaled so that this is a small part.
_MEMORY_SCALE = 1e3
_INFEASIBLE, _OPTIMAL = 2, 0


@dataclass(frozen=True)
class Program:
    """Arrays of the program: column numbers of x by variable and of y by edge, then the rows."""

    problem: Problem
    x: tuple[NDArray[np.int64], ...]
    cost: Table
    memory: Table
    rows: csr_matrix
    right: Table
    is_binary: NDArray[np.int64]

    @staticmethod
    def of(problem: Problem) -> Program:
        """Costs are in units of the least cost, memory in units of the limit."""
        sizes = problem.sizes()
        starts = np.concatenate([[0], np.cumsum(sizes)])
        x = tuple(np.arange(a, b) for a, b in zip(starts[:-1], starts[1:], strict=True))
        cost = [problem.node_cost[t] for t in problem.nodes]
        memory = [problem.node_memory[t] for t in problem.nodes]
        columns = int(starts[-1])
        row_of: list[NDArray[np.int64]] = []
        column_of: list[NDArray[np.int64]] = []
        value_of: list[Table] = []
        right: list[float] = []

        def add(row: NDArray[np.int64], column: NDArray[np.int64], value: float) -> None:
            row_of.append(row + len(right))
            column_of.append(column)
            value_of.append(np.full(len(row), value))

        for numbers in x:
            add(np.zeros(len(numbers), dtype=np.int64), numbers, 1.0)
            right.append(1.0)
        for (first, second), (edge_cost, edge_memory) in joined_edges(problem).items():
            rows, cols = np.nonzero(np.isfinite(edge_cost))
            y = columns + np.arange(len(rows))
            columns += len(rows)
            cost.append(edge_cost[rows, cols])
            memory.append(edge_memory[rows, cols])
            for variable, at in ((first, rows), (second, cols)):
                add(at, y, 1.0)
                add(np.arange(sizes[variable]), x[variable], -1.0)
                right.extend([0.0] * sizes[variable])
        from scipy.sparse import csr_matrix

        least = problem.least()[0]
        return Program(
            problem,
            x,
            np.concatenate(cost) / (least if 0 < least < math.inf else 1.0),
            np.concatenate(memory) / (problem.memory_limit or 1.0),
            csr_matrix(
                (np.concatenate(value_of), (np.concatenate(row_of), np.concatenate(column_of))),
                shape=(len(right), columns),
            ),
            np.array(right),
            (np.arange(columns) < starts[-1]).astype(np.int64),
        )

    @property
    def unit_s(self) -> float:
        least = self.problem.least()[0]
        return least if 0 < least < math.inf else 1.0

    def solve(
        self, excluded: list[Choice], seconds: float, nodes: float, gap: float
    ) -> OptimizeResult:
        """HiGHS's answer, with the choices `excluded` cut off."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # a quarter of a second
        from scipy.sparse import csr_matrix

        usable = np.isfinite(self.cost)
        constraints = [LinearConstraint(self.rows, self.right, self.right)]  # type: ignore[arg-type]
        if self.problem.memory_limit < math.inf:
            row = csr_matrix(self.memory * _MEMORY_SCALE)
            constraints.append(LinearConstraint(row, -np.inf, _MEMORY_SCALE * (1 + 1e-9)))
        for choice in excluded:
            cut = np.zeros(len(self.cost))
            cut[[numbers[s] for numbers, s in zip(self.x, choice, strict=True)]] = 1.0
            constraints.append(LinearConstraint(csr_matrix(cut), -np.inf, len(choice) - 1))
        # the solver's gap is relative to the cost, ours to the bound
        options: dict[str, float] = {"mip_rel_gap": max(ROUNDING / 10, gap / (1 + gap))}
        if seconds < math.inf:
            options["time_limit"] = seconds
        if nodes < math.inf:
            options["node_limit"] = int(nodes)
        return milp(
            np.where(usable, self.cost, 0.0),
            integrality=self.is_binary,
            bounds=Bounds(0.0, usable.astype(float)),  # type: ignore[arg-type]
            constraints=constraints,
            options=options,
        )

    def choice(self, solution: Table) -> Choice:
        """The strategy whose variable is largest, for each variable of the problem."""
        return np.array([int(np.argmax(solution[numbers])) for numbers in self.x], dtype=np.int64)


def joined_edges(problem: Problem) -> dict[tuple[int, int], tuple[Table, Table]]:
    """(first, second) -> (cost, memory) summed over the edges between them."""
    joined: dict[tuple[int, int], tuple[Table, Table]] = {}
    for edge in problem.edges:
        cost, memory = problem.edge_cost[edge.table], problem.edge_memory[edge.table]
        before = joined.get((edge.first, edge.second))
        if before is not None:
            cost, memory = cost + before[0], memory + before[1]
        joined[edge.first, edge.second] = cost, memory
    return joined


def program_columns(problem: Problem) -> int:
    """Number of columns of the program, but for strategies that no edge table joins."""
    pairs = joined_edges(problem).values()
    return sum(problem.sizes()) + sum(int(np.isfinite(cost).sum()) for cost, _ in pairs)


def integer(problem: Problem, rng: np.random.Generator, budget: Budget) -> SearchResult | None:
    """The optimum and its proof; when the budget ends, the best so far with the solver's bound.

    An evaluation is a node of the solver's tree. None if no choice fits the memory limit (or none
    was found within the budget).
    """
    with Progress(problem, budget) as run:
        smaller = Restricted.of(problem).among(prune(problem))
        found, _ = descend(smaller.problem, draw(smaller.problem, rng), spend=run.spend)
        run.offer(smaller.original(found))
        run.raise_bound(solve_program(smaller, run))
    return run.result("integer")


def solve_program(smaller: Restricted, run: Progress) -> float:
    """Offer the program's optimum to `run`; the lower bound on the cost, inf if nothing fits."""
    program = Program.of(smaller.problem)
    excluded: list[Choice] = []
    bound = -math.inf
    while True:
        run.spend()
        left = run.remaining
        answer = program.solve(excluded, left.seconds, left.evaluations, left.gap)
        spent = getattr(answer, "mip_node_count", None) or 0
        run.evaluations += int(min(spent, run.budget.evaluations - run.evaluations))
        if answer.status == _INFEASIBLE:
            return math.inf
        dual = getattr(answer, "mip_dual_bound", None)
        if dual is not None and math.isfinite(dual):
            bound = max(bound, program.unit_s * (dual - ROUNDING * abs(dual)))
        choice = None if answer.x is None else program.choice(answer.x)
        if choice is not None:
            run.offer(smaller.original(choice))
        if choice is None or answer.status != _OPTIMAL:
            run.end = "budget"
            return bound
        if smaller.problem.evaluate(choice)[1] <= smaller.problem.memory_limit:
            return bound
        excluded.append(choice)  # over the limit by no more than the solver's tolerance
