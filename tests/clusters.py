"""Clusters of the committed machine files."""

from pathlib import Path

from autoddl.cluster.spec import Cluster

MACHINES = Path(__file__).parents[1] / "calibration" / "machines"


def cluster(machine: str, nodes: int, gpus_per_node: int) -> Cluster:
    file = MACHINES / f"{machine}.json"
    return Cluster.load(file).with_shape(nodes=nodes, gpus_per_node=gpus_per_node)
