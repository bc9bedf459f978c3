"""Who takes part in a training, and where: its workers and their chief, the hosts and racks of their replicas.

Imports no TensorFlow.
"""

from tfdp.topology.branches import Branch, Rooted
from tfdp.topology.cluster import TRAINING_ROLES, Cluster, check_address, make_cluster
from tfdp.topology.environment import (
    Found,
    cluster_from_environment,
    find_cluster,
    topology_from_environment,
    topology_of_text,
)
from tfdp.topology.gpus import gpu_islands
from tfdp.topology.levels import Group, Level
from tfdp.topology.planning import ALGORITHMS, Plan, plan
from tfdp.topology.structure import Topology

__all__ = [
    "ALGORITHMS",
    "TRAINING_ROLES",
    "Branch",
    "Cluster",
    "Found",
    "Group",
    "Level",
    "Plan",
    "Rooted",
    "Topology",
    "check_address",
    "cluster_from_environment",
    "find_cluster",
    "gpu_islands",
    "make_cluster",
    "plan",
    "topology_from_environment",
    "topology_of_text",
]
