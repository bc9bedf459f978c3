"""Communicators: what a group of replicas can do together. Sums, means and gathers, whatever carries them."""

from tfdp.collectives.base import Communicator
from tfdp.collectives.by_strategy import StrategyCommunicator
from tfdp.collectives.cluster import ClusterCommunicator
from tfdp.collectives.loopback import loopback
from tfdp.collectives.prefixed import PrefixedCommunicator

__all__ = ["ClusterCommunicator", "Communicator", "PrefixedCommunicator", "StrategyCommunicator", "loopback"]
