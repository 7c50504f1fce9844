"""Clusters of the machines that come with autoddl."""

from autoddl.cluster.spec import Cluster


def cluster(machine: str, nodes: int, gpus_per_node: int) -> Cluster:
    return Cluster.load(machine).with_shape(nodes=nodes, gpus_per_node=gpus_per_node)
