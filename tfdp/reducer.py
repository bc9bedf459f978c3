"""The way of a gradient: from a replica's backpropagation through buckets, a compressor and a collective, and back."""

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp import buckets, tf_seam
from tfdp.collectives import Communicator
from tfdp.compression import Compressor, none


class GradientTraffic(NamedTuple):
    """Bytes of dense gradients that one replica hands to collectives in a step.

    Attributes:
        uncompressed_bytes: as they come from backpropagation.
        sent_bytes: as they leave, compressed.
    """

    uncompressed_bytes: int
    sent_bytes: int


class GradientReducer:
    """Sums gradients over the replicas; the only owner of the variables that hold a compressor's state."""

    def __init__(
        self,
        communicators: Sequence[Communicator],
        compressor: Compressor,
        bucket_bytes: int,
        agree: Callable[..., None],
    ) -> None:
        """Reduces for the replicas of this process.

        Args:
            communicators: one for each local replica, by its local id.
            compressor: what reduces dense floating-point gradients; all others travel as they are.
            bucket_bytes: bytes of gradients that travel together at most.
            agree: (topic, lines, names) -> None; raises where the workers' lines differ, before they meet in a
                collective.
        """
        self._communicators, self._compressor, self._bucket_bytes = communicators, compressor, bucket_bytes
        self._agree = agree
        self._states: dict[tuple[Any, ...], Any] = {}
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._plans: set[tuple[int, tuple[str, ...]]] = set()
        self._traffic: dict[int, GradientTraffic] = {}
        self._graphs: dict[tuple[Any, ...], Callable[..., Any]] = {}

    @property
    def num_replicas(self) -> int:
        """The number of replicas that the gradients are summed over."""
        return self._communicators[0].size

    @property
    def traffic(self) -> GradientTraffic:
        """Bytes of one step of every optimizer that has trained so far; zeros before the first step."""
        totals = [sum(column) for column in zip(*self._traffic.values(), strict=True)] or [0, 0]
        return GradientTraffic(*totals)

    def reduce(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the gradients summed over all replicas; called by every replica in replica context.

        Args:
            optimizer: whose gradients they are; two optimizers never share state.
            gradients: this replica's, tensors or IndexedSlices, in the order of creation of their variables.
            variables: the Keras or TensorFlow variables that they belong to.
        """
        if self.num_replicas == 1:
            return list(gradients)
        if tf.executing_eagerly():
            return self._reduce_eagerly(optimizer, gradients, variables)
        number = self._number(optimizer)
        self._check_agreement(number, gradients, variables)
        local_id = tf_seam.local_replica_id(tf.distribute.get_replica_context())
        group = _Metered(self._communicators[local_id])
        reduced: list[Any] = list(gradients)
        dense = [i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.Tensor)]
        for i in dense:
            gradients[i].set_shape(variables[i].shape)  # masks and ragged data lose it on the way
        sizes = [_num_bytes(gradients[i]) for i in dense]
        plan = buckets.plan_buckets(sizes, [gradients[i].dtype for i in dense], self._bucket_bytes)
        for index, bucket in enumerate(plan):
            members = [dense[i] for i in bucket]
            name = f"optimizer {number} bucket {index}"
            keys = [(number, tf_seam.variable_key(variables[i]), local_id) for i in members]
            totals = self._reduce_bucket([gradients[i] for i in members], keys, group, name)
            for i, total in zip(members, totals, strict=True):
                reduced[i] = total
        self._traffic[number] = GradientTraffic(sum(sizes), group.sent_bytes)
        for i, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices):
                reduced[i] = _gather_slices(gradient, group, f"optimizer {number} slices {i}")
        return reduced

    def _reduce_bucket(
        self, gradients: list[tf.Tensor], keys: list[tuple[Any, ...]], group: "_Metered", name: str
    ) -> list[tf.Tensor]:
        compressor = self._compressor if gradients[0].dtype.is_floating else none()
        variables = [self._state(key, compressor, gradient) for key, gradient in zip(keys, gradients, strict=True)]
        states = tf.nest.map_structure(lambda variable: variable.read_value(), variables)
        result = compressor.reduce(gradients, states, group, name=name)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, result.states)
        return result.total

    def _state(self, key: tuple[Any, ...], compressor: Compressor, gradient: tf.Tensor) -> Any:
        """Returns the variables of one gradient's state, made at their first use on the gradient's device."""
        if key not in self._states:
            with tf.init_scope(), tf.device(gradient.device):
                first = compressor.init(tf.TensorSpec(gradient.shape, gradient.dtype))
                self._states[key] = tf.nest.map_structure(tf_seam.plain_variable, first)
        return self._states[key]

    def _reduce_eagerly(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Reduces in a tf.function over all local replicas: eager ones run in turn, and would wait for each other."""
        key = (self._number(optimizer), *(tf_seam.variable_key(variable) for variable in variables))

        def reduce_all(strategy: tf.distribute.Strategy, per_replica: Any) -> Any:
            if key not in self._graphs:
                self._graphs[key] = tf.function(
                    lambda values: strategy.run(lambda local: self.reduce(optimizer, local, variables), args=(values,)),
                    reduce_retracing=True,
                )
            return self._graphs[key](per_replica)

        return tf.distribute.get_replica_context().merge_call(reduce_all, args=(list(gradients),))

    def _number(self, optimizer: Any) -> int:
        """Returns the position of `optimizer` among those that reduced here: the same on all workers."""
        if optimizer not in self._numbers:  # counted apart: each worker forgets optimizers when it collects its garbage
            self._numbers[optimizer] = next(self._next_number)
        return self._numbers[optimizer]

    def _check_agreement(self, number: int, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        lines = tuple(
            f"{gradient.dtype.name} {list(variable.shape)}"
            + (" as IndexedSlices" if isinstance(gradient, tf.IndexedSlices) else "")
            for gradient, variable in zip(gradients, variables, strict=True)
        )
        if (number, lines) not in self._plans:
            self._plans.add((number, lines))
            names = [getattr(variable, "path", variable.name) for variable in variables]
            self._agree(f"the gradients of optimizer {number}", lines, names)


class _Metered:
    """A communicator that counts the bytes handed to it, as the graph of a step is built."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.size, self.rank = communicator.size, communicator.rank
        self.sent_bytes = 0

    def sum(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        self.sent_bytes += sum(_num_bytes(tensor) for tensor in tensors)
        return self._communicator.sum(tensors, name=name)

    def gather(self, tensor: tf.Tensor, *, name: str) -> tf.Tensor:
        self.sent_bytes += _num_bytes(tensor)
        return self._communicator.gather(tensor, name=name)


def _num_bytes(tensor: tf.Tensor) -> int:
    """Returns the bytes of `tensor`; 0 where its shape is not known before it runs."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _gather_slices(slices: tf.IndexedSlices, group: _Metered, name: str) -> tf.IndexedSlices:
    """Returns the rows of every replica's gradient, exact; rows that several touch appear several times."""
    return tf.IndexedSlices(
        values=group.gather(slices.values, name=f"{name} values"),
        indices=group.gather(slices.indices, name=f"{name} indices"),
        dense_shape=slices.dense_shape,
    )
