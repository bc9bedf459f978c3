"""A communicator that leaves the way to the strategy."""

from collections.abc import Sequence

import tensorflow as tf

from tfdp.collectives.base import Communicator


class StrategyCommunicator(Communicator):
    """Reduces by the cross-device operations of the strategy whose replica context it is called in.

    Nothing is packed here: operations that copy between devices take each tensor as it is, and those that launch
    collectives (NCCL) pack what they are given.
    """

    can_branch = False  # replicas of one process meet outside of a choice only
    can_exchange = False

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, list(tensors))

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        rows = self.gather_rows(tensor, name=name)
        return tf.ensure_shape(rows, [tensor.shape[0] * self.size, *tensor.shape[1:]])

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(tensor, axis=0)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        rows = self.gather(tensor, name=name)
        return rows[self.rank :: self.size]
