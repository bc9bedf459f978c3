"""What compressors remember, as plain variables of this process that can be saved and restored."""

import gc
import io
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp import tf_seam
from tfdp.compression import Compressor, describe

_LOG = logging.getLogger("tfdp")
_FORMAT = 1


class Slot(NamedTuple):
    """Whose gradient a state belongs to.

    Attributes:
        optimizer: the position of the optimizer among those that reduced gradients.
        position: of the variable among those of the optimizer, in the order of their first gradients.
        path: of the variable.
    """

    optimizer: int
    position: int
    path: str


class Members(NamedTuple):
    """Who remembers: replicas, or the hosts that they share.

    Attributes:
        of_replicas: the position of the member that each replica of this process belongs to.
        num_members: how many there are.
        layout: what settles which replica of a member keeps the state of which gradient: a text to be compared.
    """

    of_replicas: Sequence[int]
    num_members: int
    layout: str = ""


class Part(NamedTuple):
    """What one replica keeps of the states of all gradients.

    Attributes:
        rank: of the replica.
        num_members: the number of replicas.
        compressor: its text.
        states: by slot, a flat list of arrays.
        member: the position of the host whose state this is part of; None where it is the replica's own.
        num_hosts: the number of hosts; None where replicas have states of their own.
        layout: see `Members`.
        slots: of all gradients that have a state, whoever keeps it; empty where those of `states` are all.
    """

    rank: int
    num_members: int
    compressor: str
    states: Mapping[Slot, list[np.ndarray]]
    member: int | None = None
    num_hosts: int | None = None
    layout: str = ""
    slots: Sequence[Slot] = ()

    @property
    def owner(self) -> int:
        """The position of who remembers this."""
        return self.rank if self.member is None else self.member

    @property
    def num_owners(self) -> int:
        """The number of those who remember."""
        return self.num_members if self.num_hosts is None else self.num_hosts


class CompressionState(tf.train.experimental.PythonState):
    """The state of compression of the replicas of this process: `tf.train.Checkpoint(strategy_state=...)` takes it.

    Every worker saves what its own replicas remember, without asking the others. Restored by as many replicas as have
    saved it, each goes on with its own part, bit for bit. Any other number of replicas needs the parts of all: what
    they had not sent yet is shared out among the new ones. It can be restored before the model has been built.

    Members that remember different things would send different things. So all workers must restore, and where one of
    them has not got all that it needs, as in a checkpoint of another worker, all start anew.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        num_members: int,
        compressor: Compressor,
        exchange: Callable[[str, Any], list[Any]] = lambda topic, value: [value],
        members: Members | None = None,
    ) -> None:
        """Holds what some of all replicas keep.

        Args:
            ranks: of this process's replicas.
            num_members: the number of all replicas.
            compressor: of the strategy.
            exchange: (topic, value) -> the values of all workers, who must all call it.
            members: whose states they are; None where each replica has its own.
        """
        super().__init__()
        self._members = members or Members(list(ranks), num_members)
        self._ranks, self._num_members, self._compressor = list(ranks), num_members, compressor
        self._exchange = exchange
        self._expected: dict[int, dict[Slot, None]] = {}
        self._variables: dict[tuple[Slot, int], Any] = {}
        self._compressors: dict[Slot, tuple[Compressor, tf.TensorSpec]] = {}
        self._restored: list[Part] = []

    @property
    def ranks(self) -> list[int]:
        """The ranks of this process's replicas."""
        return list(self._ranks)

    @property
    def num_members(self) -> int:
        """The number of all replicas."""
        return self._num_members

    def remembers(self, specs: Iterable[tf.TensorSpec]) -> bool:
        """Returns whether compression keeps anything between the steps of a training of such variables.

        Args:
            specs: their shapes and dtypes, and as names their paths.
        """
        return self._members.num_members > 1 and any(
            tf.nest.flatten(self._compressor.for_variable(spec).init(spec)) for spec in specs
        )

    def expect(self, slots: Iterable[Slot]) -> None:
        """Takes notice of the gradients of an optimizer that have a state, before their variables are asked for."""
        for slot in slots:
            self._expected.setdefault(slot.optimizer, {})[slot] = None

    def variables(self, slot: Slot, local_id: int, compressor: Compressor, spec: tf.TensorSpec, device: str) -> Any:
        """Returns the variables of one gradient's state on a local replica, made at their first use.

        Args:
            slot: whose gradient it is.
            local_id: the replica's position in this process.
            compressor: what reduces the gradient.
            spec: what the gradient is like.
            device: where the variables shall be.
        """
        key = slot, local_id
        if key not in self._variables:
            self.expect([slot])
            self._compressors[slot] = compressor, spec
            with tf.init_scope(), tf.device(device):
                first = self._first_value(slot, local_id)
                self._variables[key] = tf.nest.map_structure(tf_seam.plain_variable, first)
        return self._variables[key]

    def drop(self, slot: Slot) -> None:
        """Forgets the state of a gradient that will not come again."""
        for key in [key for key in list(self._variables) if key[0] == slot]:
            self._variables.pop(key, None)
        self._compressors.pop(slot, None)
        self._expected.get(slot.optimizer, {}).pop(slot, None)
        if not self._expected.get(slot.optimizer):
            self._expected.pop(slot.optimizer, None)

    def bytes_of(self, slot: Slot) -> int:
        """Returns the memory of one gradient's state, on the replica that keeps it; 0 where none here does."""
        kept = [variables for (one, _), variables in list(self._variables.items()) if one == slot]
        leaves = tf.nest.flatten(kept[0]) if kept else []
        return sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)

    def parts(self) -> list[Part]:
        """Returns the states of this process's replicas as they are now."""
        gc.collect()  # with an optimizer that another has replaced goes its state
        variables_of = dict(self._variables)
        own_states = self._members.num_members == self._num_members
        return [
            Part(
                rank,
                self._num_members,
                describe(self._compressor),
                {
                    slot: [leaf.numpy() for leaf in tf.nest.flatten(variables)]
                    for (slot, owner), variables in variables_of.items()
                    if owner == local_id and tf.nest.flatten(variables)
                },
                member=None if own_states else self._members.of_replicas[local_id],
                num_hosts=None if own_states else self._members.num_members,
                layout=self._members.layout,
                slots=() if own_states else tuple(slot for slots in self._expected.values() for slot in slots),
            )
            for local_id, rank in enumerate(self._ranks)
        ]

    def restore(self, parts: Sequence[Part]) -> None:
        """Takes over states: at once where there are variables, and otherwise when they are made.

        Args:
            parts: of members of one group, each once. Without any, compression starts anew.

        Raises:
            ValueError: they are of another compressor.
            RuntimeError: another worker does not restore.
        """
        for part in parts:
            if part.compressor != describe(self._compressor):
                raise ValueError(
                    f"The saved state of compression is of compression={part.compressor}, and this strategy has "
                    f"compression={describe(self._compressor)}. Train on with the same compression, or leave the state "
                    "out."
                )
        if parts and not all(self._exchange("the saved compression state", self._has_all_of(parts))):
            _LOG.warning(
                "tfdp: a worker has not got all parts of the saved compression state that it needs, received here: "
                "those of replicas %s of %d. Compression starts anew on all workers. Each worker must restore what it "
                "has saved itself; with another number of replicas, what all have saved.",
                sorted(part.rank for part in parts),
                parts[0].num_members,
            )
            parts = []
        self._restored = list(parts)
        for (slot, local_id), variables in list(self._variables.items()):
            value = self._first_value(slot, local_id)
            tf.nest.map_structure(lambda variable, leaf: variable.assign(leaf), variables, value)

    def serialize(self) -> bytes:
        """Returns the states of this process's replicas, for a checkpoint."""
        return serialized(self.parts())

    def deserialize(self, string_value: bytes) -> None:
        """Restores what `serialize` gave, from a checkpoint."""
        if string_value:
            self.restore(deserialized(string_value))

    def fits(self, parts: Sequence[Part]) -> bool:
        """Returns whether parts of this process's replicas are all that they need: they keep the same as then."""
        return all(self._is_same_layout(part) for part in parts)

    def _has_all_of(self, parts: Sequence[Part]) -> bool:
        there = {part.rank for part in parts}
        if self._is_same_layout(parts[0]):
            return there >= set(self._ranks)
        return there == set(range(parts[0].num_members))

    def _is_same_layout(self, part: Part) -> bool:
        theirs = part.num_members, part.num_owners, part.layout
        return theirs == (self._num_members, self._members.num_members, self._members.layout)

    def _first_value(self, slot: Slot, local_id: int) -> Any:
        compressor, spec = self._compressors[slot]
        first = compressor.init(spec)
        if not tf.nest.flatten(first) or not self._restored:
            return first
        owner, wanted = self._members.of_replicas[local_id], {part.owner for part in self._restored}
        if self._is_same_layout(self._restored[0]):
            wanted = {owner}
        saved = {}
        for one in sorted(wanted):
            states = {
                slot: leaves for part in self._restored if part.owner == one for slot, leaves in part.states.items()
            }
            everyones = {slot for part in self._restored for slot in part.slots} | states.keys()
            leaves = self._find(states, everyones, slot, first)
            if leaves is not None:
                saved[one] = leaves
        if len(saved) < len(wanted):
            _LOG.warning("tfdp: the saved compression state has nothing for %s, which starts anew.", slot.path)
            return first
        if self._restored[0].num_owners == self._members.num_members:
            return tf.nest.pack_sequence_as(first, saved[owner])
        all_states = [tf.nest.pack_sequence_as(first, leaves) for _, leaves in sorted(saved.items())]
        return compressor.merge(all_states, self._members.num_members)

    def _find(
        self, states: Mapping[Slot, list[np.ndarray]], all_saved: Set[Slot], slot: Slot, first: Any
    ) -> list[np.ndarray] | None:
        """Returns the saved state of `slot`, in the same shapes.

        Optimizers are found by their order, since their numbers count those that are gone. Variables are found by
        their paths where all of an optimizer's are there (some may be frozen now), and otherwise by their positions
        (Keras numbers layers on as models are made).
        """
        optimizers, saved_optimizers = sorted(self._expected), sorted({one.optimizer for one in all_saved})
        index = optimizers.index(slot.optimizer)
        if index >= len(saved_optimizers):
            return None
        saved = [one for one in all_saved if one.optimizer == saved_optimizers[index]]
        by_path, by_position = {one.path: one for one in saved}, {one.position: one for one in saved}
        paths = [one.path for one in self._expected[slot.optimizer]]
        goes_by_path = len(by_path) == len(saved) and len(set(paths)) == len(paths) and set(paths) <= by_path.keys()
        one = by_path.get(slot.path) if goes_by_path else by_position.get(slot.position)
        leaves = None if one is None else states.get(one)
        wanted = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in tf.nest.flatten(first)]
        return leaves if leaves is not None and [(leaf.shape, leaf.dtype) for leaf in leaves] == wanted else None


def serialized(parts: Iterable[Part]) -> bytes:
    """Returns parts as bytes: the arrays, and a description of them as JSON."""
    arrays: list[np.ndarray] = []
    description: dict[str, Any] = {"format": _FORMAT, "parts": []}
    for part in parts:
        slots = []
        for slot, leaves in part.states.items():
            like = [{"dtype": tf.as_dtype(leaf.dtype).name, "shape": list(leaf.shape)} for leaf in leaves]
            slots.append({"slot": list(slot), "leaves": like, "first": len(arrays)})
            arrays.extend(np.frombuffer(leaf.tobytes(), np.uint8) for leaf in leaves)
        about = {name: value for name, value in part._asdict().items() if name not in ("states", "slots")}
        description["parts"].append({**about, "slots": slots, "all_slots": [list(slot) for slot in part.slots]})
    file = io.BytesIO()
    named = {f"array_{i}": array for i, array in enumerate(arrays)}
    named["description"] = np.frombuffer(json.dumps(description).encode(), np.uint8)
    np.savez(file, allow_pickle=False, **named)
    return file.getvalue()


def deserialized(content: bytes) -> list[Part]:
    """Returns the parts that `serialized` was given.

    Raises:
        ValueError: the bytes are not whole, or of a later version.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            description = json.loads(file["description"].tobytes())
            if description["format"] != _FORMAT:
                raise ValueError(f"they are of format {description['format']}, this version of tfdp reads {_FORMAT}")
            return [_part(file, **part) for part in description["parts"]]
    except Exception as error:  # zipfile and numpy meet broken bytes with errors of a dozen kinds
        raise ValueError(f"These bytes are no saved compression state: {error}.") from error


def _part(file: Mapping[str, np.ndarray], *, slots: Sequence[Any], all_slots: Sequence[Any] = (), **about: Any) -> Part:
    return Part(states=_states(file, slots), slots=tuple(Slot(*slot) for slot in all_slots), **about)


def _states(file: Mapping[str, np.ndarray], slots: Sequence[Any]) -> dict[Slot, list[np.ndarray]]:
    return {
        Slot(*slot["slot"]): [
            np.frombuffer(
                file[f"array_{slot['first'] + i}"].tobytes(), tf.as_dtype(leaf["dtype"]).as_numpy_dtype
            ).reshape(leaf["shape"])
            for i, leaf in enumerate(slot["leaves"])
        ]
        for slot in slots
    }
