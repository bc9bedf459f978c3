"""A communicator between the processes of a cluster."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdp import carrying, tf_seam
from tfdp.collectives.along_tree import packed, unpacked
from tfdp.collectives.base import Communicator


class ClusterCommunicator(Communicator):
    """Reduces by TensorFlow's collective operations (gRPC between CPUs, NCCL between GPUs); in a tf.function only.

    On CPUs with one replica in each process, collectives of different names run at the same time. Elsewhere they run in
    the order of the calls: NCCL needs one order on all devices, and several members of a group in one process wait for
    each other for ever without one.
    """

    can_branch = True
    can_exchange = True

    def __init__(
        self, launcher: tf_seam.Launcher, *, size: int, rank: int, device: str, options: Any, in_order: bool
    ) -> None:
        """Speaks for the replica on `device`.

        Args:
            launcher: the device's member of the group, from `tf_seam.group_members`.
            size: replicas in the group.
            rank: the replica's position in it.
            device: the canonical name of the replica's device.
            options: tf.distribute.experimental.CommunicationOptions; its timeout bounds every collective.
            in_order: whether collectives must run in the order of the calls.
        """
        self.size, self.rank = size, rank
        self._launcher, self._device, self._options, self._in_order = launcher, device, options, in_order
        self._tokens: dict[str, tf.Variable] = {}

    # TensorFlow's collectives die of tensors without elements.

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        if not sum(_num_elements(tensor) for tensor in tensors):
            return list(tensors)
        with tf.device(self._device):
            carried = [carrying.as_carried(tensor, carrying.REDUCED) for tensor in tensors]
            vector = packed(carried)
            total = tf_seam.reduce_tensor(self._launcher, vector, **self._call("sum", vector, name))
            totals = unpacked(total, [carry.shape for carry in carried])
            return [carrying.from_carried(total, tensor.dtype) for total, tensor in zip(totals, tensors, strict=True)]

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        with tf.device(self._device):
            if not _num_elements(tensor):
                return tf.zeros([tensor.shape[0] * self.size, *tensor.shape[1:]], tensor.dtype)
            carried = carrying.as_carried(tensor, carrying.GATHERED)
            rows = tf_seam.gather_tensor(self._launcher, carried, **self._call("gather", carried, name))
            rows = tf.ensure_shape(rows, [carried.shape[0] * self.size, *carried.shape[1:]])
            return carrying.from_carried(rows, tensor.dtype)

    def gather_rows(self, tensor: tf.Tensor, *, name: str, counts: tf.Tensor | None = None) -> tf.Tensor:
        with tf.device(self._device):
            carried = carrying.as_carried(tensor, carrying.GATHERED)
            num_rows = tf.shape(carried)[:1]
            if counts is None:
                counts = self.gather(tf.ensure_shape(num_rows, [1]), name=f"{name} counts")
            most = tf.reduce_max(counts)
            padding = [[0, most - num_rows[0]]] + [[0, 0]] * (carried.shape.rank - 1)
            padded = tf.pad(carried, padding)
            padded.set_shape([None, *carried.shape[1:]])
            rows = tf_seam.gather_tensor(self._launcher, padded, **self._call("rows", padded, name))
            present = tf.reshape(tf.range(most)[tf.newaxis, :] < counts[:, tf.newaxis], [-1])
            return carrying.from_carried(tf.boolean_mask(rows, present), tensor.dtype)

    def exchange(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        if not _num_elements(tensor):
            return tensor
        with tf.device(self._device):
            carried = carrying.as_carried(tensor, carrying.GATHERED)
            rows = tf_seam.exchange_tensor(self._launcher, carried, **self._call("exchange", carried, name))
            return carrying.from_carried(tf.ensure_shape(rows, carried.shape), tensor.dtype)

    def _call(self, operation: str, tensor: tf.Tensor, name: str) -> dict[str, Any]:
        key = tf_seam.instance_key(self._launcher.instance_keys, f"{operation} {name}", tensor, self._device)
        return {"key": key, "token": self._token(name), "device": self._device, "options": self._options}

    def _token(self, name: str) -> Any:
        """Returns the resource that puts collectives which share it in order: with the same name, or all of them."""
        if self._in_order:
            return self._launcher.ordering_token
        if name not in self._tokens:
            with tf.init_scope(), tf.device(self._device):
                self._tokens[name] = tf_seam.plain_variable(0.0)
        return self._tokens[name].handle


def _num_elements(tensor: tf.Tensor) -> int:
    return int(tensor.shape.num_elements())
