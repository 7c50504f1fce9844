"""Times of `PathTable`: the shared structure once, then a table of 400 x 400 pairs per tensor.

python benchmarks/path_table.py [--pairs 400] [--axes 2,4,6,8] [--ranks 2,3,4]
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from autoddl.sbp.collectives import StepKind
from autoddl.sbp.layout import TensorSpec
from autoddl.sbp.mesh import Mesh
from autoddl.sbp.redistribute import PathTable, PriceFn
from autoddl.sbp.states import StateGraph, core_codes


def ring_price(mesh: Mesh) -> PriceFn:
    """Ring and pairwise collectives on nodes with a shared NIC (design: bytes per NIC)."""

    def price(kind: StepKind, axes: tuple[int, ...]) -> tuple[float, float]:
        nodes, gpus = mesh.topology(axes)
        p = nodes * gpus
        alpha, beta = (2e-5, 1e-10) if nodes > 1 else (5e-6, 1e-11)
        share = mesh.gpus_per_node / gpus if nodes > 1 else 1
        if kind == "all_to_all":
            crossing = mesh.gpus_per_node * (p - gpus) / p if nodes > 1 else (p - 1) / p
            return (p - 1) * alpha, crossing * beta
        times = 2 if kind == "all_reduce" else 1
        return times * (p - 1) * alpha, times * share * (p - 1) / p * beta

    return price


def sample(mesh: Mesh, ndim: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` states of few blocks, as a search asks for."""
    codes = core_codes(mesh, ndim)
    return codes[np.sort(rng.choice(len(codes), min(count, len(codes)), replace=False))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--axes", default="2,4,6,8")
    parser.add_argument("--ranks", default="2,3,4")
    args = parser.parse_args()
    print("axes rank   core states  build s   edges    table  first s  next s")
    for num_axes in map(int, args.axes.split(",")):
        mesh = Mesh(2**num_axes, 1)
        for ndim in map(int, args.ranks.split(",")):
            rng = np.random.default_rng(0)
            table = PathTable(mesh, ring_price(mesh))
            sources = sample(mesh, ndim, args.pairs, rng)
            targets = sample(mesh, ndim, args.pairs, rng)
            times = [time.perf_counter()]
            graph = StateGraph.core(mesh, ndim)
            times.append(time.perf_counter())
            for size in (1024, 2048):
                table.seconds(TensorSpec((size,) * ndim), sources, targets)
                times.append(time.perf_counter())
            build, first, after = np.diff(times)
            print(
                f"{num_axes:4d} {ndim:4d} {len(graph.codes):13d} {build:8.3f} {len(graph.src):7d} "
                f"{len(sources):4d}x{len(targets):<4d} {first:7.3f} {after:7.3f}"
            )


if __name__ == "__main__":
    main()
