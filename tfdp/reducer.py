"""The way of a gradient: from a replica's backpropagation through buckets, a compressor and a collective, and back."""

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp import buckets, sparse, tf_seam
from tfdp.collectives import Communicator, PrefixedCommunicator, Route
from tfdp.compression import Compressor, all_finite, describe, none
from tfdp.compression_state import CompressionState, Members, Slot
from tfdp.traffic import CompressionReport, VariableTraffic, bytes_on_the_wire


class _Plan(NamedTuple):
    """How one gradient travels.

    Attributes:
        slot: whose it is.
        compressor: what reduces it.
        spec: its variable's shape, its own dtype, and as its name the variable's path.
        is_sparse: whether it is IndexedSlices.
        has_state: whether the compressor remembers something of it.
    """

    slot: Slot
    compressor: Compressor
    spec: tf.TensorSpec
    is_sparse: bool
    has_state: bool


class GradientReducer:
    """Sums gradients over the replicas; the only owner of the variables that hold a compressor's state."""

    def __init__(
        self,
        routes: Sequence[Route],
        compressor: Compressor,
        bucket_bytes: int,
        agree: Callable[..., None],
        exchange: Callable[[str, Any], list[Any]] = lambda topic, value: [value],
        layout: str = "",
    ) -> None:
        """Reduces for the replicas of this process.

        Args:
            routes: one for each local replica, by its local id.
            compressor: what reduces dense floating-point gradients; all others travel as they are.
            bucket_bytes: bytes of gradients that travel together at most.
            agree: (topic, lines, names) -> None; raises where the workers' lines differ, before they meet in a
                collective.
            exchange: (topic, value) -> the values of all workers.
            layout: where the replicas stand, as far as the routes depend on it.
        """
        self._routes, self._compressor, self._bucket_bytes = routes, compressor, bucket_bytes
        self._agree, self._exact = agree, none()
        ranks = [route.replica for route in routes]
        groups = Members([route.member for route in routes], routes[0].num_members, layout)
        self.state = CompressionState(ranks, self.num_replicas, compressor, exchange, groups)
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next_number = itertools.count()
        self._slots: dict[tuple[int, str], Slot] = {}
        self._num_slots: Counter[int] = Counter()
        self._agreed: set[tuple[int, tuple[str, ...]]] = set()
        self._plans: dict[Slot, _Plan] = {}
        self._turns: dict[Slot, int] = {}
        self._bucket_plans: dict[tuple[Any, ...], tuple[list[list[int]], list[int]]] = {}
        self._buckets: dict[int, list[list[Slot]]] = {}
        self._graphs: dict[tuple[Any, ...], Callable[..., Any]] = {}

    @property
    def num_replicas(self) -> int:
        """The number of replicas that the gradients are summed over."""
        return self._routes[0].everyone.size

    @property
    def num_members(self) -> int:
        """The number of hosts, or else of replicas, between which compressors reduce."""
        return self._routes[0].num_members

    def report(self) -> CompressionReport:
        """Returns what travels for each variable that has had a gradient so far."""
        wire_bytes: dict[Slot, tuple[int, int] | None] = {}
        plans = dict(self._plans)
        for bucket in [bucket for buckets_of in list(self._buckets.values()) for bucket in buckets_of]:
            members = [plans[slot] for slot in bucket if slot in plans]
            if members:
                wire_bytes.update(self._wire_bytes(members))
        variables = [self._traffic_of(plan, wire_bytes) for plan in plans.values()]
        return CompressionReport(variables, self.num_members, self._routes[0].kind)

    def _can_exchange(self) -> bool:
        turns = range(self._routes[0].num_turns)
        return all(route.members(turn).can_exchange for route in self._routes for turn in turns if route.carries(turn))

    def _wire_bytes(self, bucket: list[_Plan]) -> dict[Slot, tuple[int, int] | None]:
        """Returns for each gradient of a bucket its part of what a replica sends, (without compression, with it)."""
        specs, exchanges = [plan.spec for plan in bucket], self._can_exchange()
        before, after = (
            bytes_on_the_wire(compressor, specs, self.num_members, can_exchange=exchanges)
            for compressor in (self._exact, bucket[0].compressor)
        )
        if before is None or after is None:
            return {plan.slot: None for plan in bucket}
        alone = [
            [bytes_on_the_wire(compressor, spec, self.num_members, can_exchange=exchanges) or 0 for spec in specs]
            for compressor in (self._exact, bucket[0].compressor)
        ]
        # What travels together may fill its blocks better than each alone.
        factors = [total / max(sum(parts), 1) for total, parts in zip((before, after), alone, strict=True)]
        return {
            plan.slot: (round(one * factors[0]), round(other * factors[1]))
            for plan, one, other in zip(bucket, *alone, strict=True)
        }

    def _traffic_of(self, plan: _Plan, wire_bytes: dict[Slot, tuple[int, int] | None]) -> VariableTraffic:
        num_bytes = (plan.spec.shape.num_elements() or 0) * plan.spec.dtype.size
        sent = None if plan.is_sparse else wire_bytes.get(plan.slot, (0, 0))
        state_bytes = self.state.bytes_of(plan.slot)
        shape = tuple(plan.spec.shape)
        return VariableTraffic(plan.slot.path, shape, describe(plan.compressor), num_bytes, sent, state_bytes)

    def reduce(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], *, keep_rows: bool = False
    ) -> list[Any]:
        """Returns the gradients summed over all replicas; called by every replica in replica context.

        Args:
            optimizer: whose gradients they are; two optimizers never share state.
            gradients: this replica's, tensors or IndexedSlices, in the order of creation of their variables.
            variables: the Keras or TensorFlow variables that they belong to.
            keep_rows: whether rows of sparse gradients must arrive one by one, as one device has them: to be clipped.

        Raises:
            ValueError: the optimizer does not go with a compressor.
        """
        if self.num_replicas == 1:
            return list(gradients)
        if tf.executing_eagerly():
            return self._reduce_eagerly(optimizer, gradients, variables, keep_rows)
        number = self._number(optimizer)
        plans = [self._plan(number, *pair) for pair in zip(gradients, variables, strict=True)]
        for compressor in {id(plan.compressor): plan.compressor for plan in plans if not plan.is_sparse}.values():
            compressor.check_optimizer(optimizer)
        self._check_agreement(number, plans)
        local_id = tf_seam.local_replica_id(tf.distribute.get_replica_context())
        route = self._routes[local_id]
        # Compressors do not see the number: random numbers follow from names, and a training that goes on in another
        # process may have had no optimizer before.
        prefix = f"optimizer {number}"
        buckets_of, turns = self._bucketed(number, plans, route)
        for plan, gradient, variable in zip(plans, gradients, variables, strict=True):
            if not plan.is_sparse:
                gradient.set_shape(variable.shape)  # masks and ragged data lose it on the way
        whole = [[gradients[i] for i in bucket] for bucket in buckets_of]

        sums = route.up(whole, turns, name=prefix)
        moves: list[_Move | None] = [None] * len(sums)
        for index, (bucket, turn) in enumerate(zip(buckets_of, turns, strict=True)):
            if (part := sums[index]) is not None:
                group = PrefixedCommunicator(route.members(turn), prefix)
                moves[index] = self._reduce_bucket(part, [plans[i] for i in bucket], local_id, group, f"bucket {index}")
        remembers = any(plan.has_state for plan in plans)  # then all must know whether all is finite, in every bucket
        carried = [move and [*move.total, *([move.flag()] if remembers else [])] for move in moves]
        like = [[*bucket, *([tf.zeros([], bucket[0].dtype)] if remembers else [])] for bucket in whole]
        totals = route.down(carried, like, turns, name=prefix)

        reduced: list[Any] = list(gradients)
        for bucket, of_bucket in zip(buckets_of, totals, strict=True):
            for i, total in zip(bucket, of_bucket[: len(bucket)], strict=True):
                reduced[i] = total
        everyone = PrefixedCommunicator(route.everyone, prefix)
        for i, plan in enumerate(plans):
            if plan.is_sparse and keep_rows:
                reduced[i] = sparse.gather_slices(gradients[i], everyone, name=f"slices {i}")
            elif plan.is_sparse:
                dtype = plan.compressor.sparse_dtype
                reduced[i] = sparse.reduce_slices(gradients[i], everyone, dtype, name=f"slices {i}")
        if remembers:
            flags = [of_bucket[-1] != 0 for of_bucket in totals]
            rows = [reduced[i].values for i, plan in enumerate(plans) if plan.is_sparse]
            _move_on([move for move in moves if move], tf.reduce_all([*flags, *([all_finite(rows)] if rows else [])]))
        return reduced

    def _bucketed(self, number: int, plans: Sequence[_Plan], route: Route) -> tuple[list[list[int]], list[int]]:
        """Returns which dense gradients travel together, by their positions, and the turn of each bucket.

        They are the same each time that these gradients come, on every replica: traces differ from worker to worker. A
        gradient keeps the turn that it had first, beside whatever others, as its state is where it was carried.
        """
        key = number, *((plan.slot, plan.spec.dtype, id(plan.compressor), plan.is_sparse) for plan in plans)
        if key not in self._bucket_plans:
            self._bucket_plans[key] = self._planned(plans, route.num_turns)
        buckets_of, turns = self._bucket_plans[key]
        self._remember(number, [[plans[i].slot for i in bucket] for bucket in buckets_of])
        self.state.expect(plan.slot for plan in plans if plan.has_state)
        return buckets_of, turns

    def _planned(self, plans: Sequence[_Plan], num_turns: int) -> tuple[list[list[int]], list[int]]:
        """Returns what `_bucketed` does, where these gradients come together for the first time."""
        dense = [i for i, plan in enumerate(plans) if not plan.is_sparse]
        sizes = [(plans[i].spec.shape.num_elements() or 0) * plans[i].spec.dtype.size for i in dense]
        known = [self._turns.get(plans[i].slot) if num_turns > 1 else 0 for i in dense]
        kinds = [(plans[i].spec.dtype, id(plans[i].compressor), turn) for i, turn in zip(dense, known, strict=True)]
        planned = buckets.plan_buckets(sizes, kinds, self._bucket_bytes)
        dealt = buckets.deal([sum(sizes[i] for i in bucket) for bucket in planned], num_turns)
        firsts = [known[bucket[0]] for bucket in planned]
        turns = [turn if first is None else first for first, turn in zip(firsts, dealt, strict=True)]
        buckets_of = [[dense[i] for i in bucket] for bucket in planned]
        for bucket, turn in zip(buckets_of, turns, strict=True):
            self._turns.update({plans[i].slot: turn for i in bucket})
        return buckets_of, turns

    def _remember(self, number: int, buckets_of: list[list[Slot]]) -> None:
        """Keeps what travels together, in place of what the same gradients did; others may come by another call."""
        slots = {slot for bucket in buckets_of for slot in bucket}
        others = [bucket for bucket in self._buckets.get(number, ()) if slots.isdisjoint(bucket)]
        self._buckets[number] = [*others, *buckets_of]

    def _reduce_bucket(
        self, gradients: list[tf.Tensor], plans: list[_Plan], local_id: int, group: Communicator, name: str
    ) -> "_Move":
        compressor = plans[0].compressor
        variables = [
            self.state.variables(plan.slot, local_id, compressor, plan.spec, gradient.device)
            for plan, gradient in zip(plans, gradients, strict=True)
        ]
        states = tf.nest.map_structure(lambda variable: variable.read_value(), variables)
        result = compressor.reduce(gradients, states, group, name=name)
        return _Move(tf.nest.flatten(variables), tf.nest.flatten(result.states), result.total, result.finite)

    def _reduce_eagerly(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], keep_rows: bool
    ) -> list[Any]:
        """Reduces in a tf.function over all local replicas: eager ones run in turn, and would wait for each other."""
        key = (self._number(optimizer), keep_rows, *(tf_seam.variable_key(variable) for variable in variables))

        owner = weakref.ref(optimizer)  # which may go, and take its graphs with it

        def reduce_local(local: Any) -> list[Any]:
            return self.reduce(owner(), local, variables, keep_rows=keep_rows)

        def reduce_all(strategy: tf.distribute.Strategy, per_replica: Any) -> Any:
            if key not in self._graphs:
                self._graphs[key] = tf.function(
                    lambda values: strategy.run(reduce_local, args=(values,)),
                    reduce_retracing=True,
                    autograph=False,
                )
            return self._graphs[key](per_replica)

        return tf.distribute.get_replica_context().merge_call(reduce_all, args=(list(gradients),))

    def _number(self, optimizer: Any) -> int:
        """Returns the position of `optimizer` among those that reduced here: the same on all workers."""
        if optimizer not in self._numbers:  # counted apart: each worker forgets optimizers when it collects its garbage
            number = self._numbers[optimizer] = next(self._next_number)
            weakref.finalize(optimizer, self._forget, number).atexit = False
        return self._numbers[optimizer]

    def _forget(self, number: int) -> None:
        """Drops what is kept of an optimizer that is gone, and its model with it."""
        self._buckets.pop(number, None)
        for kept in (self._graphs, self._bucket_plans):
            for key in [key for key in list(kept) if key[0] == number]:
                kept.pop(key, None)
        for key in [key for key in list(self._slots) if key[0] == number]:
            slot = self._slots.pop(key)
            self._plans.pop(slot, None)
            self._turns.pop(slot, None)
            self.state.drop(slot)

    def _plan(self, number: int, gradient: Any, variable: Any) -> _Plan:
        path = getattr(variable, "path", variable.name)
        key = number, tf_seam.variable_key(variable)
        if key not in self._slots:
            self._slots[key] = Slot(number, self._num_slots[number], path)
            self._num_slots[number] += 1
        spec = tf.TensorSpec(variable.shape, gradient.dtype, name=path)
        compressor = self._compressor.for_variable(spec) if gradient.dtype.is_floating else self._exact
        if not spec.shape.num_elements() or self.num_members == 1:
            compressor = self._exact
        slot, is_sparse = self._slots[key], isinstance(gradient, tf.IndexedSlices)
        before = self._plans.get(slot)
        if before is None or (before.compressor, before.spec, before.is_sparse) != (compressor, spec, is_sparse):
            has_state = not is_sparse and bool(tf.nest.flatten(compressor.init(spec)))
            self._plans[slot] = _Plan(slot, compressor, spec, is_sparse, has_state)
        return self._plans[slot]

    def _check_agreement(self, number: int, plans: Sequence[_Plan]) -> None:
        lines = tuple(
            f"{plan.spec.dtype.name} {list(plan.spec.shape)} by {describe(plan.compressor)}"
            + (" as IndexedSlices" if plan.is_sparse else "")
            for plan in plans
        )
        if (number, lines) not in self._agreed:
            self._agreed.add((number, lines))
            self._agree(f"the gradients of optimizer {number}", lines, [plan.slot.path for plan in plans])


class _Move(NamedTuple):
    """What comes of a bucket, and what its compressor remembers of this step.

    Attributes:
        variables: that hold its state.
        values: what they shall be.
        total: the reduced gradients.
        finite: whether these are; None where nobody has looked.
    """

    variables: list[tf.Variable]
    values: list[Any]
    total: list[tf.Tensor]
    finite: tf.Tensor | None

    def flag(self) -> tf.Tensor:
        """Returns 1 where all of `total` is finite, else 0, in its dtype."""
        finite = all_finite(self.total) if self.finite is None else self.finite
        return tf.cast(finite, self.total[0].dtype)


def _move_on(moves: Sequence[_Move], finite: tf.Tensor) -> None:
    """Gives states their new values, in a step whose reduced gradients are all finite: any other may be skipped.

    Args:
        moves: of the buckets that are carried here.
        finite: whether all that was reduced in this step is finite, a bool scalar.
    """

    def assign() -> tf.Tensor:
        for move in moves:
            for variable, value in zip(move.variables, move.values, strict=True):
                variable.assign(value)
        return tf.constant(0)

    if any(move.variables for move in moves):
        tf.cond(finite, assign, lambda: tf.constant(0))
