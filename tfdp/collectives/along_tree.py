"""Sums that go up a tree of replicas, and come down again."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf

from tfdp import tf_seam
from tfdp.topology import Rooted


class Link(Protocol):
    """How tensors get from one replica to another."""

    def device(self, replica: int) -> str:
        """Returns the device of a replica of this process."""

    def send(self, tensors: Sequence[tf.Tensor], source: int, target: int, *, name: str) -> None:
        """Sends tensors of one dtype from a replica of this process to one of another."""

    def receive(self, like: Sequence[tf.TensorSpec], source: int, target: int, *, name: str) -> list[tf.Tensor]:
        """Returns what a replica of another process sends to one of this process."""


class Copies:
    """The link between devices of one process, which only copies."""

    def __init__(self, devices: Mapping[int, str]) -> None:
        """Holds the devices, by replica."""
        self._devices = devices

    def device(self, replica: int) -> str:
        return self._devices[replica]

    def send(self, tensors: Sequence[tf.Tensor], source: int, target: int, *, name: str) -> None:
        raise AssertionError(f"Replicas {source} and {target} are not both in this process: {name}.")

    def receive(self, like: Sequence[tf.TensorSpec], source: int, target: int, *, name: str) -> list[tf.Tensor]:
        raise AssertionError(f"Replicas {source} and {target} are not both in this process: {name}.")


def summed_up(
    tree: Rooted,
    values: Mapping[int, Sequence[tf.Tensor]],
    like: Sequence[tf.TensorSpec],
    link: Link,
    *,
    name: str,
) -> list[tf.Tensor] | None:
    """Returns the element-wise sums over all replicas of the tree, or None where its root is in another process.

    Args:
        tree: who adds up what.
        values: tensors of the replicas that are here.
        like: what the tensors are like.
        link: that carries what comes from elsewhere.
        name: what is added up: the same in all processes, and unlike any other in a step.
    """
    if not tree.children:
        return list(values[tree.replica]) if tree.replica in values else None
    parts: list[list[tf.Tensor]] = []
    for child in tree.children:
        part = summed_up(child, values, like, link, name=name)
        if tree.replica in values:
            if part is None:
                part = link.receive(like, child.replica, tree.replica, name=f"{name} up")
            parts.append(part)
        elif part is not None:
            link.send(part, child.replica, tree.replica, name=f"{name} up")
    if tree.replica not in values:
        return None
    with tf.device(link.device(tree.replica)):
        return [tf_seam.sum_in_order(summands) for summands in zip(*parts, strict=True)]


def handed_down(
    tree: Rooted,
    here: Iterable[int],
    tensors: Sequence[tf.Tensor] | None,
    like: Sequence[tf.TensorSpec],
    link: Link,
    *,
    name: str,
) -> dict[int, list[tf.Tensor]]:
    """Returns what the root of the tree has, for each replica of the tree that is here, on its device.

    Args:
        tree: the way, from its root.
        here: the replicas that are here.
        tensors: of the root; None where it is in another process.
        like: what the tensors are like.
        link: that carries them.
        name: as for `summed_up`.
    """
    here = set(here)
    if not tree.children:
        return {tree.replica: list(tensors)} if tensors is not None else {}
    received: dict[int, list[tf.Tensor]] = {}
    for child in tree.children:
        part = None if tensors is None else list(tensors)
        if child.replica != tree.replica:
            if child.replica not in here:
                if part is not None:
                    link.send(part, tree.replica, child.replica, name=f"{name} down")
                part = None
            elif part is None:
                part = link.receive(like, tree.replica, child.replica, name=f"{name} down")
            else:
                with tf.device(link.device(child.replica)):
                    part = [tf.identity(tensor) for tensor in part]
        received |= handed_down(child, here, part, like, link, name=name)
    return received


def specs_of(tensors: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    """Returns what tensors are like."""
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def packed(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the elements of all tensors, which are of one dtype, in one vector."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unpacked(vector: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """Returns tensors of `shapes` with the elements of `vector`."""
    sizes = [shape.num_elements() for shape in shapes]
    parts = [vector] if len(sizes) == 1 else tf.split(vector, sizes)
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
