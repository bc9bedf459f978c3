"""Ways from a replica of one process to a replica of another."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdp import carrying, tf_seam
from tfdp.collectives.along_tree import packed, unpacked


class Groups(Protocol):
    """What makes this process's members of groups of replicas."""

    def __call__(self, members: tuple[int, ...], replica: int) -> tf_seam.Launcher:
        """Returns the member of a group that `replica`, which is here, is."""


class PairLinks:
    """Sends from one replica to another by a broadcast in the group of the two: TensorFlow's, so gRPC or NCCL."""

    def __init__(self, devices: Mapping[int, str], groups: Groups, options: Any) -> None:
        """Links replicas of this process to others.

        Args:
            devices: of the replicas of this process.
            groups: makes the groups of two.
            options: tf.distribute.experimental.CommunicationOptions.
        """
        self._devices, self._groups, self._options = devices, groups, options
        self._marks: dict[int, tf.Variable] = {}

    def device(self, replica: int) -> str:
        return self._devices[replica]

    def send(self, tensors: Sequence[tf.Tensor], source: int, target: int, *, name: str) -> None:
        with tf.device(self._devices[source]):
            carried = packed([carrying.as_carried(tensor, carrying.BROADCAST) for tensor in tensors])
            if carried.shape.num_elements():
                launcher = self._groups(_pair(source, target), source)
                key = self._key(launcher, carried.dtype, carried.shape, source, target, name)
                sent = tf_seam.send_tensor(launcher, carried, key=key, options=self._options)
                # A step leaves out what nobody waits for, unless it changes a variable.
                with tf.control_dependencies([sent]):
                    self._mark(source).assign(0.0)

    def receive(self, like: Sequence[tf.TensorSpec], source: int, target: int, *, name: str) -> list[tf.Tensor]:
        with tf.device(self._devices[target]):
            # What is received is told by what would be sent.
            carried = [carrying.as_carried(tf.zeros(spec.shape, spec.dtype), carrying.BROADCAST) for spec in like]
            shape = tf.TensorShape([sum(tensor.shape.num_elements() for tensor in carried)])
            if not shape.num_elements():
                return [tf.zeros(spec.shape, spec.dtype) for spec in like]
            launcher = self._groups(_pair(source, target), target)
            key = self._key(launcher, carried[0].dtype, shape, source, target, name)
            vector = tf_seam.receive_tensor(launcher, shape, carried[0].dtype, key=key, options=self._options)
            parts = unpacked(tf.ensure_shape(vector, shape), [tensor.shape for tensor in carried])
            return [carrying.from_carried(part, spec.dtype) for part, spec in zip(parts, like, strict=True)]

    def _mark(self, replica: int) -> tf.Variable:
        """Returns a variable of a replica that means nothing."""
        if replica not in self._marks:
            with tf.init_scope(), tf.device(self._devices[replica]):
                self._marks[replica] = tf_seam.plain_variable(0.0)
        return self._marks[replica]

    def _key(
        self, launcher: tf_seam.Launcher, dtype: tf.DType, shape: tf.TensorShape, source: int, target: int, name: str
    ) -> int:
        signature = f"{name} from {source} to {target}", dtype.name, str(shape)
        return launcher.instance_keys.fixed(signature, self._devices[source if source in self._devices else target])


def _pair(source: int, target: int) -> tuple[int, int]:
    return min(source, target), max(source, target)
