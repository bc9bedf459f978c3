"""Communicators: what a group of replicas can do together, whatever carries it; and the ways that buckets go."""

from tfdp.collectives.along_tree import Copies, handed_down, specs_of, summed_up
from tfdp.collectives.base import Communicator
from tfdp.collectives.by_strategy import StrategyCommunicator
from tfdp.collectives.cluster import ClusterCommunicator
from tfdp.collectives.levelled import LevelledCommunicator
from tfdp.collectives.links import PairLinks
from tfdp.collectives.local import LocalCommunicator
from tfdp.collectives.loopback import loopback
from tfdp.collectives.meeting import Meeting
from tfdp.collectives.prefixed import PrefixedCommunicator
from tfdp.collectives.routes import FlatRoute, PlannedRoute, Route

__all__ = [
    "ClusterCommunicator",
    "Communicator",
    "Copies",
    "FlatRoute",
    "LevelledCommunicator",
    "LocalCommunicator",
    "Meeting",
    "PairLinks",
    "PlannedRoute",
    "PrefixedCommunicator",
    "Route",
    "StrategyCommunicator",
    "handed_down",
    "loopback",
    "specs_of",
    "summed_up",
]
