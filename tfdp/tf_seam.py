"""The only module that touches private names of TensorFlow: strategies, collective keys, the start of a cluster.

Every name is used in `tests/test_seams.py`, which fails with a readable message when TensorFlow moves one.
"""

import contextlib
import contextvars
import functools
import itertools
import re
import threading
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_ops,
    cross_device_utils,
    device_util,
    distribute_lib,
    distribute_utils,
    input_lib,
    mirrored_strategy,
    multi_worker_util,
    values,
)
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import ops
from tensorflow.python.ops import collective_ops, resource_variable_ops

from tfdp import carrying, topology

# Group keys of a strategy are KEYS_PER_STRATEGY consecutive numbers. Those of strategies over several workers count up
# from 1, the same on every worker; those of strategies within one process count up from 2**30 in steps that differ from
# worker to worker, since the leader of the cluster keeps one table of groups for all of them.
_KEYS_PER_STRATEGY = 1024
_FIRST_LOCAL_GROUP_KEY = 1 << 30
# Keys of groups of some of a strategy's replicas lie between, as many for each strategy.
_FIRST_SUBGROUP_KEY, _SUBGROUPS_PER_STRATEGY = 1 << 29, 1 << 16
_cluster_strategies = itertools.count()
_local_strategies = itertools.count()

# Instance keys that TensorFlow counts up itself start at 100. Ours are apart: fixed ones, and those with a shape added.
_FIRST_FIXED_KEY, _FIRST_SHAPED_KEY = 1 << 24, 1 << 30
_SHAPES_PER_KEY = 1 << 20


# Whether a variable that is being made holds each replica's part of a sum, which Keras before 3.10 does not say.
making_partial_sum = contextvars.ContextVar("making_partial_sum", default=False)


class InstanceKeys:
    """Collective instance keys that follow from what is reduced, not from how often a worker has traced a function.

    TensorFlow feeds a new key at every call, which does not reach nested control flow (`steps_per_execution`), costs a
    round trip to the leader for every collective of every step, and lets its tables grow for ever. A key made here is a
    hash of the signature of a collective and of how many of that signature the outermost function already holds: all
    workers agree on it though they may trace anew at different times, and it stays the same from step to step.
    """

    def __init__(self) -> None:
        self._signature_of_key: dict[int, tuple] = {}
        self._uses: weakref.WeakKeyDictionary[Any, Counter] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def fixed(self, signature: tuple, device: str) -> int:
        """Returns the key of the next collective with this `signature` on `device`; it must have one static shape."""
        return self._key(("fixed", *signature), device, _FIRST_FIXED_KEY, _FIRST_SHAPED_KEY - _FIRST_FIXED_KEY, 1)

    def shaped(self, signature: tuple, device: str, shape: tf.Tensor) -> tf.Tensor:
        """Returns the key, an int32 scalar, of a collective whose `shape` (int32 vector, equal on all) may change."""
        num_slots = ((1 << 31) - _FIRST_SHAPED_KEY) // _SHAPES_PER_KEY
        first = self._key(("shaped", *signature), device, _FIRST_SHAPED_KEY, num_slots, _SHAPES_PER_KEY)
        rank = shape.shape[0] or 0
        weights = [pow(31, axis, _SHAPES_PER_KEY) for axis in range(rank)]
        fold = tf.reduce_sum(tf.cast(shape, tf.int64) * tf.constant(weights, tf.int64)) % _SHAPES_PER_KEY
        return tf.cast(fold, tf.int32) + first

    def _key(self, signature: tuple, device: str, first: int, num_slots: int, stride: int) -> int:
        with self._lock:
            uses = self._uses.setdefault(outermost_graph(), Counter())
            occurrence = uses[signature, device]
            uses[signature, device] += 1
            wanted = (*signature, occurrence)
            slot = zlib.crc32(repr(wanted).encode()) % num_slots
            for probe in range(num_slots):
                key = first + (slot + probe) % num_slots * stride
                if self._signature_of_key.setdefault(key, wanted) == wanted:
                    return key
        raise RuntimeError(f"More than {num_slots} different collectives in one strategy.")


def outermost_graph() -> Any:
    """Returns the graph of the outermost tf.function that is being traced."""
    graph = ops.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and getattr(graph.outer_graph, "building_function", False):
        graph = graph.outer_graph
    return graph


class Launcher(cross_device_utils.CollectiveReplicaLauncher):
    """Launches the collectives that are no gradients (metrics, losses, BatchNorm sums), with keys of `InstanceKeys`."""

    def __init__(self, *args: Any, instance_keys: InstanceKeys) -> None:
        super().__init__(*args)
        self.instance_keys = instance_keys

    @property
    def group_key(self) -> int:
        """The number that names this launcher's group of devices."""
        return self._group_key

    @property
    def ordering_token(self) -> Any:
        """A resource on this launcher's device: collectives that share it run one after the other."""
        return self._ordering_token.handle

    def all_reduce(self, input_tensor: tf.Tensor, control_input: Any = None, options: Any = None) -> tf.Tensor:
        tensor = tf.convert_to_tensor(input_tensor)
        carried = carrying.as_carried(tensor, carrying.REDUCED)
        with self._key_for("all_reduce", carried):
            return carrying.from_carried(super().all_reduce(carried, control_input, options), tensor.dtype)

    def _all_gather(self, input_tensor: tf.Tensor, options: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(input_tensor)
        carried = carrying.as_carried(tensor, carrying.GATHERED)
        with self._key_for("all_gather", carried):
            return carrying.from_carried(super()._all_gather(carried, options), tensor.dtype)

    @contextlib.contextmanager
    def _key_for(self, operation: str, tensor: tf.Tensor) -> Iterator[None]:
        if not tf.executing_eagerly():
            self._next = instance_key(self.instance_keys, operation, tensor, self._device)
        try:
            yield
        finally:
            self._next = None

    def _next_instance_key(self) -> Any:
        key = getattr(self, "_next", None)
        return super()._next_instance_key() if key is None else key


def instance_key(keys: InstanceKeys, operation: str, tensor: tf.Tensor, device: str) -> Any:
    """Returns the instance key, an int or an int32 scalar, of `operation` on `tensor` in the graph being built."""
    signature = (operation, tensor.dtype.name, str(tensor.shape))
    if tensor.shape.is_fully_defined():
        return keys.fixed(signature, device)
    return keys.shaped(signature, device, tf.shape(tensor))


class CrossDeviceOps(cross_device_ops.CollectiveAllReduce):
    """TensorFlow's collective cross-device operations, launched by `Launcher`."""

    def __init__(
        self, devices: Sequence[str], group_size: int, options: Any, collective_keys: Any, instance_keys: InstanceKeys
    ) -> None:
        super().__init__(devices, group_size, options, collective_keys)
        group_key = collective_keys.get_group_key(self._devices)
        self._launchers = [
            Launcher(group_key, group_size, collective_keys, device, options, instance_keys=instance_keys)
            for device in self._devices
        ]

    @property
    def launchers(self) -> list[Launcher]:
        """One launcher for each local device."""
        return self._launchers

    def _all_reduce(self, reduce_op: Any, value: Any, replica_id: int, options: Any) -> Any:
        """Reduces each dtype apart, which TensorFlow would pack into one tensor."""
        leaves = tf.nest.flatten(value)
        reduced = list(leaves)
        for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
            members = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
            results = super()._all_reduce(reduce_op, [leaves[i] for i in members], replica_id, options)
            for i, result in zip(members, results, strict=True):
                reduced[i] = result
        return tf.nest.pack_sequence_as(value, reduced)


def sum_in_order(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the sum, added from the first on; `tf.add_n` begins with the one whose memory it may overwrite."""
    return functools.reduce(tf.add, tensors)


def tensors_of_replicas(value: Any, destinations: Any) -> list[tf.Tensor] | None:
    """Returns the tensors of a value per replica that is to be reduced to where it is, or None where it is not so."""
    if not isinstance(value, values.DistributedValues):
        return None
    if not all(isinstance(one, tf.Tensor) for one in value.values):  # IndexedSlices
        return None
    wanted = [device_util.canonicalize(device) for device in cross_device_ops.get_devices_from(destinations)]
    return list(value.values) if wanted == [device_util.canonicalize(one.device) for one in value.values] else None


def num_replicas_of(value: Any) -> int:
    """Returns of how many replicas a value holds its tensors."""
    return len(value.values) if isinstance(value, values.DistributedValues) else 1


def mirrored(tensors: Sequence[tf.Tensor]) -> Any:
    """Returns the value per replica of tensors that are the same on each."""
    return distribute_utils.regroup(list(tensors), wrap_class=values.Mirrored)


class TwoLevelCrossDeviceOps(CrossDeviceOps):
    """Adds up within this process, over the processes by one collective, and hands out copies.

    For several CPU devices in each process: as members of one group they would wait for each other's threads.
    """

    def __init__(self, devices: Sequence[str], num_workers: int, *args: Any) -> None:
        super().__init__(devices[:1], num_workers, *args)
        self._local_devices = tuple(device_util.canonicalize(device) for device in devices)

    @property
    def _num_between_graph_workers(self) -> int:
        return self._group_size

    def _all_reduce_per_replica_values(self, reduce_op: Any, per_replica_values: Any, options: Any) -> list[Any]:
        with self._lock, tf.device(self._devices[0]):
            local = [
                cross_device_utils.aggregate_tensors_or_indexed_slices(list(value.values), sum_in_order)
                for value in per_replica_values
            ]
            totals = self._all_reduce(tf.distribute.ReduceOp.SUM, local, 0, options)
            if reduce_op == tf.distribute.ReduceOp.MEAN:
                num_replicas = self._group_size * len(self._local_devices)
                totals = [cross_device_utils.divide_by_n_tensors_or_indexed_slices(t, num_replicas) for t in totals]
        return [self._copies(total) for total in totals]

    def _batch_all_gather(self, per_replica_values: Any, axis: Any, options: Any) -> list[Any]:
        def gather() -> list[tf.Tensor]:
            with self._lock, tf.device(self._devices[0]):
                local = [tf.concat(value.values, axis) for value in per_replica_values]
                return [self._launchers[0].all_gather(value, axis, options) for value in local]

        gathered = tf.function(gather)() if tf.executing_eagerly() else gather()
        return [self._copies(value) for value in gathered]

    def _copies(self, value: Any) -> Any:
        copy = cross_device_utils.copy_tensor_or_indexed_slices_to_device
        copies = [copy(value, device) for device in self._local_devices]
        return distribute_utils.regroup(copies, wrap_class=values.Mirrored)


class _PartialSums:
    """Lets replicas keep their parts of a sum apart until it is read, where `making_partial_sum` asks for it."""

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        if making_partial_sum.get():
            kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        return super()._create_variable(next_creator, **kwargs)  # type: ignore[misc]


class _AnyNumbers:
    """Reduces nests of numbers of any dtype, where TensorFlow takes int32 only alone, and no booleans."""

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        pairs = [(_without_booleans(value), value, destination) for value, destination in value_destination_pairs]
        reduced: list[Any] = [None] * len(pairs)
        groups: dict[tuple[int, bool], list[int]] = {}
        for i, (carried, value, _) in enumerate(pairs):
            first, second = (self._get_cross_device_ops(carried) for _ in range(2))  # type: ignore[attr-defined]
            # What is made anew each time reduces on the host, and nothing else with it.
            groups.setdefault((id(first) if first is second else -i, carried is not value), []).append(i)
        for (_, are_booleans), members in groups.items():
            of_group = [(pairs[i][0], pairs[i][0] if are_booleans else pairs[i][2]) for i in members]
            results = super()._batch_reduce_to(reduce_op, of_group, options)  # type: ignore[misc]
            for i, result in zip(members, results, strict=True):
                reduced[i] = _of_each(lambda one: tf.cast(one, tf.bool), result) if are_booleans else result
        return reduced


def _without_booleans(value: Any) -> Any:
    """Returns `value`, of one replica or several, with booleans as integers."""
    first = value.values[0] if isinstance(value, values.DistributedValues) else value
    return _of_each(lambda one: tf.cast(one, tf.int32), value) if getattr(first, "dtype", None) == tf.bool else value


def _of_each(function: Callable[[tf.Tensor], tf.Tensor], value: Any) -> Any:
    if not isinstance(value, values.DistributedValues):
        return function(value)
    results = []
    for one in value.values:
        with tf.device(one.device):
            results.append(function(one))
    return distribute_utils.regroup(results)


class MirroredExtended(_PartialSums, _AnyNumbers, mirrored_strategy.MirroredExtended):
    """What TensorFlow's MirroredStrategy does, with groups that no other strategy of the process ever joins."""

    def __init__(
        self, container_strategy: tf.distribute.Strategy, devices: Sequence[str], cross_device_ops: Any
    ) -> None:
        container_strategy._collective_key_base = local_group_key_base()
        super().__init__(container_strategy, devices=list(devices), cross_device_ops=cross_device_ops)


class MultiWorkerExtended(_PartialSums, _AnyNumbers, collective_all_reduce_strategy.CollectiveAllReduceExtended):
    """What TensorFlow's MultiWorkerMirroredStrategy does, on all local devices and with deadlines."""

    # The cluster's heartbeats do that. TensorFlow's own thread for it, which every strategy but the first would start,
    # may be within a call when the process ends, and then aborts it.
    _enable_check_health = False

    def __init__(
        self,
        container_strategy: tf.distribute.Strategy,
        cluster: topology.Cluster | None,
        devices: Sequence[str] | None,
        communication_options: Any,
        start_timeout_seconds: float,
    ) -> None:
        self.agree: Callable[..., None] = lambda topic, lines, names=(): None
        self._num_workers = 1
        self._local_device_type = "CPU"
        self._wanted_devices = None if devices is None else [device_index(device) for device in devices]
        self.instance_keys = InstanceKeys()
        several = cluster is not None and cluster.num_workers > 1
        self._cluster = cluster if several else None
        container_strategy._collective_key_base = cluster_group_key_base() if several else local_group_key_base()
        if self._cluster is not None:
            # A second strategy of the process finds the server running and joins it.
            self._std_server_started = _server_runs(self._cluster)
            if not self._std_server_started:
                _configure_deadlines(self._cluster, start_timeout_seconds)
        super().__init__(container_strategy, _resolver(cluster), communication_options)
        for name in ("_host_cross_device_ops", "_cross_device_ops"):
            setattr(self, name, self._with_instance_keys(getattr(self, name)))

    @property
    def first_replica(self) -> int:
        """The position of this process's first replica among all replicas."""
        return self._id_in_cluster * len(self.worker_devices)

    @property
    def adds_up_locally(self) -> bool:
        """Whether the replicas of this process are one member of a collective group, not one each."""
        return len(self.worker_devices) > 1 and self._num_workers > 1 and self._local_device_type == "CPU"

    def _with_instance_keys(self, operations: Any) -> CrossDeviceOps:
        common = (operations._options, self._collective_keys, self.instance_keys)
        devices = operations._devices
        if len(devices) > 1 and self.adds_up_locally:
            return TwoLevelCrossDeviceOps(devices, self._num_workers, *common)
        return CrossDeviceOps(devices, operations._group_size, *common)

    def _initialize_strategy(self, cluster_resolver: Any, devices: Any) -> None:
        if self._cluster is not None:
            self._initialize_multi_worker(cluster_resolver)
        else:
            self._initialize_local(cluster_resolver, devices=None)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        known = [device_index(device.name) for device in tf.config.list_logical_devices() if _is_local(device.name)]
        missing = [f"{kind}:{index}" for kind, index in self._wanted_devices or [] if (kind, index) not in known]
        if missing:
            names = ", ".join(f"{kind}:{index}" for kind, index in known)
            raise ValueError(f"`devices` must name devices of this process: {names}. Received: {missing[0]}.")
        devices = self._wanted_devices or [device_index(device.name) for device in default_devices()]
        kinds = {kind for kind, _ in devices}
        if len(kinds) > 1:
            raise ValueError(f"`devices` must be of one kind, all GPUs or all CPUs. Received: {sorted(kinds)}.")
        return tuple(f"{worker_device}/device:{kind}:{index}" for kind, index in devices), kinds.pop()

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str | None, primary_var: Any, **kwargs: Any
    ) -> Any:
        if replica_id > 0 or self._cluster is None:
            return super()._get_variable_creator_initial_value(
                replica_id=replica_id, device=device, primary_var=primary_var, **kwargs
            )

        def broadcast_from_chief() -> tf.Tensor:
            value = kwargs["initial_value"]
            value = value() if callable(value) else value
            value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype=kwargs.get("dtype"))
            if tf.executing_eagerly():
                line = f"{value.dtype.name} {value.shape.as_list()}"
                self.agree("the next variable", [line], [kwargs.get("name") or "Variable"])
            if not value.shape.num_elements():  # TensorFlow's broadcast dies of nothing to send
                return value
            carried = carrying.as_carried(value, carrying.BROADCAST)
            group_key = self._collective_keys.get_group_key([device])
            key = self._collective_keys.get_instance_key(group_key, device)
            where = (carried.shape, carried.dtype, self._num_workers, group_key, key)
            deadline = {"timeout": self._communication_options.timeout_seconds or 0}
            if not self._is_chief:
                carried = collective_ops.broadcast_recv(*where, **deadline)
            else:
                with tf.control_dependencies([collective_ops.broadcast_send(carried, *where, **deadline)]):
                    carried = tf.identity(carried)
            return carrying.from_carried(carried, value.dtype)

        def initial_value() -> tf.Tensor:
            with tf.device(device):
                return broadcast_from_chief()

        return initial_value

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if options is None or not options.timeout_seconds:
            options = self._communication_options.merge(options)
        if self.adds_up_locally:  # needs the values of all local replicas: TensorFlow's general way, by a merge call
            return distribute_lib.StrategyExtendedV2._replica_ctx_all_reduce(self, reduce_op, value, options)
        return super()._replica_ctx_all_reduce(reduce_op, value, options)


def group_members(strategy: tf.distribute.Strategy) -> list[Launcher]:
    """Returns the launchers of a multi-worker `strategy`: one for each replica of this process."""
    return strategy.extended._cross_device_ops.launchers


class Subgroups:
    """Makes this process's members of groups of some of a strategy's replicas, at their first use."""

    def __init__(self, strategy: tf.distribute.Strategy, devices: dict[int, str], groups: Sequence[tuple[int, ...]]):
        """Knows the groups.

        Args:
            strategy: over several workers.
            devices: of the replicas of this process.
            groups: all that there may be on any worker, in the same order everywhere, each with its replicas in order.
        """
        if len(groups) > _SUBGROUPS_PER_STRATEGY:
            raise ValueError(
                f"A strategy can have {_SUBGROUPS_PER_STRATEGY} groups of replicas. Received: {len(groups)}."
            )
        first = _FIRST_SUBGROUP_KEY + strategy_number(strategy) * _SUBGROUPS_PER_STRATEGY
        self._keys = {group: first + i for i, group in enumerate(groups)}
        self._of_all = dict(zip(devices, group_members(strategy), strict=False))
        self._strategy, self._devices = strategy, devices
        self._launchers: dict[tuple[tuple[int, ...], int], Launcher] = {}
        self._instance_keys: dict[tuple[int, ...], InstanceKeys] = {}

    def __call__(self, members: tuple[int, ...], replica: int) -> Launcher:
        """Returns the member of a group that `replica`, which is of this process, is."""
        if (members, replica) not in self._launchers:
            extended = self._strategy.extended
            # Keys of their own: only members know what a group does.
            keys = self._instance_keys.setdefault(members, InstanceKeys())
            self._launchers[members, replica] = Launcher(
                self._keys[members],
                len(members),
                extended._collective_keys,
                self._devices[replica],
                extended._communication_options,
                instance_keys=keys,
            )
            if replica in self._of_all:  # one order for all that a device does, whatever group it does it in
                self._launchers[members, replica]._ordering_token = self._of_all[replica]._ordering_token
        return self._launchers[members, replica]


def strategy_number(strategy: tf.distribute.Strategy) -> int:
    """Returns the position of `strategy` among those of its kind that this process made; equal on all workers."""
    return strategy._collective_key_base // _KEYS_PER_STRATEGY


def local_replica_id(replica_context: tf.distribute.ReplicaContext) -> int:
    """Returns which of the replicas of this process runs: 0 for the first."""
    return replica_context.strategy.extended._get_local_replica_id(replica_id(replica_context))


def replica_id(replica_context: tf.distribute.ReplicaContext) -> int:
    """Returns which of all replicas runs."""
    in_sync = replica_context.replica_id_in_sync_group
    return in_sync if isinstance(in_sync, int) else int(tf.get_static_value(in_sync))


def local_variable(variable: Any) -> Any:
    """Returns the copy of `variable` that the replica in whose context this is called holds."""
    context = tf.distribute.get_replica_context()
    if hasattr(variable, "_get_replica"):
        return variable._get_replica(local_replica_id(context))
    return variable


def reading_own_parts() -> Any:
    """Returns a context in which variables that are reduced over all replicas when read give this process's part.

    So one worker can read them without the others, who would have to take part in the collective.
    """
    return distribute_lib.UpdateContext(0)


def call_for_each_replica(strategy: tf.distribute.Strategy, function: Any, args: tuple[Any, ...]) -> Any:
    """Runs `function` on the replicas of this process, from cross-replica context, within the graph being built."""
    return strategy.extended.call_for_each_replica(function, args=args)


def is_made_by_function(dataset: Any) -> bool:
    """Whether `dataset` comes from `Strategy.distribute_datasets_from_function`."""
    return isinstance(dataset, input_lib.DistributedDatasetsFromFunction)


def in_multi_worker_mode(strategy: tf.distribute.Strategy) -> bool:
    """Whether `strategy` spans several processes."""
    return getattr(strategy.extended, "_cluster", None) is not None


def default_devices() -> list[tf.config.LogicalDevice]:
    """Returns all logical GPUs, or all logical CPUs where there are none, of this process."""
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return [device for device in devices if _is_local(device.name)]


def runtime_has_started() -> bool:
    """Whether TensorFlow has set up its devices, after which their number is fixed."""
    return context.context()._context_handle is not None


def variable_key(variable: Any) -> str:
    """Returns what names `variable` (of any replica) within this process."""
    variable = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
    if hasattr(variable, "_distributed_container"):
        variable = variable._distributed_container()
    elif hasattr(getattr(variable, "handle", None), "_distributed_container"):
        variable = variable.handle._distributed_container()
    return variable._unique_id


def is_distributed(variable: tf.Variable) -> bool:
    """Returns whether `variable` was created within the scope of a strategy with replicas."""
    return isinstance(variable, values.DistributedVariable)


def is_mirrored(variable: tf.Variable) -> bool:
    """Returns whether all replicas hold copies of `variable` that are the same at any time."""
    return isinstance(variable, values.MirroredVariable)


def plain_variable(initial_value: Any, *, trainable: bool = False) -> tf.Variable:
    """Returns a variable of this process alone, on the current device, whatever strategy is in scope."""
    return resource_variable_ops.ResourceVariable(initial_value, trainable=trainable)


def is_call_of_runtime(frame: Any) -> bool:
    """Whether `frame`, the innermost of a thread, has handed its thread to TensorFlow's runtime."""
    return frame.f_code.co_filename == execute.__file__


def abort_collectives(message: str) -> None:
    """Makes all collectives that this process waits in, and all later ones, raise a DeadlineExceededError."""
    context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, message)


def publish(key: str, value: str) -> None:
    """Puts `value` where every worker of the cluster can read it by `key`."""
    context.context().set_config_key_value(key, value)


def unpublish(key: str) -> None:
    """Forgets what was published by `key`."""
    context.context().delete_config_key_value(key)


def read_published(key: str, timeout_seconds: float) -> str:
    """Returns what a worker published; waits for it.

    Raises:
        tf.errors.DeadlineExceededError: nobody published `key` in time.
    """
    return context.context().get_config_key_value(key, timeout_in_ms=max(1, int(timeout_seconds * 1000)))


def reduce_tensor(launcher: Launcher, tensor: tf.Tensor, **call: Any) -> tf.Tensor:
    """Returns the sum of `tensor` over the group of `launcher`; see `_collective`."""
    return _collective(collective_ops.all_reduce_v2, launcher, tensor, **call)


def gather_tensor(launcher: Launcher, tensor: tf.Tensor, **call: Any) -> tf.Tensor:
    """Returns the `tensor` of every member of the group, joined along the first axis by rank; see `_collective`."""
    return _collective(collective_ops.all_gather_v2, launcher, tensor, **call)


def exchange_tensor(launcher: Launcher, tensor: tf.Tensor, **call: Any) -> tf.Tensor:
    """Returns of every member of the group the row of `tensor` that has this one's rank; see `_collective`."""
    return _collective(collective_ops.all_to_all_v2, launcher, tensor, **call)


def send_tensor(launcher: Launcher, tensor: tf.Tensor, *, key: int, options: Any) -> tf.Tensor:
    """Returns `tensor` once it is sent to the other members of the group of `launcher`; it is if that is used."""
    return collective_ops.broadcast_send_v2(tensor, **_of_group(launcher, key, options))


def receive_tensor(launcher: Launcher, shape: tf.TensorShape, dtype: tf.DType, *, key: int, options: Any) -> tf.Tensor:
    """Returns what another member of the group of `launcher` sends."""
    return collective_ops.broadcast_recv_v2(shape.as_list(), dtype, **_of_group(launcher, key, options))


def _of_group(launcher: Launcher, key: Any, options: Any) -> dict[str, Any]:
    return {
        "group_size": launcher._group_size,
        "group_key": launcher.group_key,
        "instance_key": key,
        "communication_hint": options.implementation.value,
        "timeout": options.timeout_seconds or 0,
    }


def _collective(
    operation: Callable[..., tf.Tensor],
    launcher: Launcher,
    tensor: tf.Tensor,
    *,
    key: Any,
    token: Any,
    device: str,
    options: Any,
) -> tf.Tensor:
    """Launches a collective of the group of `launcher`.

    Args:
        operation: of TensorFlow's collective_ops.
        launcher: the device's member of the group.
        tensor: this member's.
        key: from `instance_key`.
        token: a resource that puts collectives which share it in order.
        device: where to run.
        options: tf.distribute.experimental.CommunicationOptions.
    """
    with tf.device(device):
        return operation(
            tensor,
            **_of_group(launcher, key, options),
            ordering_token=token,
        )


def local_group_key_base() -> int:
    """Returns the base of group keys for one more strategy within this process."""
    rank, num_workers = _task_of_running_server()
    return _FIRST_LOCAL_GROUP_KEY + (next(_local_strategies) * num_workers + rank) * _KEYS_PER_STRATEGY


def cluster_group_key_base() -> int:
    """Returns the base of group keys for one more strategy over all workers: the same on each of them."""
    return next(_cluster_strategies) * _KEYS_PER_STRATEGY


def _task_of_running_server() -> tuple[int, int]:
    server = context.context()._collective_ops_server_def
    if server is None:
        return 0, 1
    jobs = {job.name: len(job.tasks) for job in server.cluster.job}
    rank = server.task_index + (jobs.get("chief", 0) if server.job_name == "worker" else 0)
    return rank, sum(jobs.values())


def _server_runs(cluster: topology.Cluster) -> bool:
    """Whether this process already is a member of `cluster`.

    Raises:
        RuntimeError: it is a member of another cluster, or has started TensorFlow without any.
    """
    server = context.context()._collective_ops_server_def
    if server is None:
        if runtime_has_started():
            raise RuntimeError(
                "tfdp.MultiWorkerMirroredStrategy must be made before TensorFlow starts, and it has started already. "
                "Make the strategy first in the program: before any tensor, variable, layer or dataset, before "
                "keras.utils.set_random_seed, tf.random.set_seed and tf.config.list_logical_devices."
            )
        return False
    running = {job.name: tuple(job.tasks[index] for index in sorted(job.tasks)) for job in server.cluster.job}
    wanted = {role: tuple(addresses) for role, addresses in cluster.jobs.items()}
    if running != wanted or (server.job_name, server.task_index) != (cluster.task_type, cluster.task_id):
        raise RuntimeError(
            "A process can be a member of one cluster only, and this one already is "
            f"{server.job_name} {server.task_index} of {running}. Received: {cluster.task_type} {cluster.task_id} of "
            f"{wanted}. Start a new process for another cluster."
        )
    return True


def _configure_deadlines(cluster: topology.Cluster, start_timeout_seconds: float) -> None:
    """Sets how long this process waits for the others: to come, to answer a heartbeat, to reach the end."""
    messages = collective_all_reduce_strategy.coordination_config_pb2  # its own place moves from version to version
    milliseconds = max(1, int(start_timeout_seconds * 1000))
    spec = tf.train.ClusterSpec({role: list(addresses) for role, addresses in cluster.jobs.items()})
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        cluster_register_timeout_in_ms=milliseconds,
        shutdown_barrier_timeout_in_ms=milliseconds,
        coordinated_jobs=[
            messages.CoordinatedJob(name=role, num_tasks=len(addresses)) for role, addresses in cluster.jobs.items()
        ],
    )


def _resolver(cluster: topology.Cluster | None) -> tf.distribute.cluster_resolver.ClusterResolver:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver
    if cluster is None:
        return resolver(tf.train.ClusterSpec({}), rpc_layer="grpc")
    spec = tf.train.ClusterSpec({role: list(addresses) for role, addresses in cluster.jobs.items()})
    return resolver(spec, task_type=cluster.task_type, task_id=cluster.task_id, rpc_layer="grpc")


def device_index(device: str) -> tuple[str, int]:
    """Returns the kind and number of a device: ("GPU", 0) for "/gpu:0"."""
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return str(spec.device_type), int(spec.device_index or 0)


def _is_local(device: str) -> bool:
    server = context.context()._collective_ops_server_def
    spec = tf.DeviceSpec.from_string(device)
    return server is None or spec.job == "localhost" or (spec.job, spec.task) == (server.job_name, server.task_index)


class Peeled(NamedTuple):
    """A data set without what was done to its examples last.

    Attributes:
        inner: what is left.
        maps: the functions that were mapped over its examples, in their order.
        shuffle_buffer: examples in the largest buffer that it was shuffled with; 0 where it was not.
        batch: (examples, size) -> batches, as it was batched; None where it was not.
        batch_size: that it was batched with; None where it was not.
        drops_remainder: whether a last batch that is not full was left out.
        gives_batches: whether `inner` gives batches, since more was done to them than can be taken off; None where its
            steps do not tell.
    """

    inner: tf.data.Dataset
    maps: tuple[Callable[..., Any], ...]
    shuffle_buffer: int
    batch: Callable[[tf.data.Dataset, int], tf.data.Dataset] | None = None
    batch_size: int | None = None
    drops_remainder: bool = False
    gives_batches: bool | None = False


_BATCHES = ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset")
_MAPS = ("_MapDataset", "_ParallelMapDataset")
_PASSES_ON = ("_PrefetchDataset", "_OptionsDataset")


def peeled(dataset: tf.data.Dataset, *, batched: bool | None = None) -> Peeled:
    """Takes batching, shuffling, prefetching and maps off a data set, as far as they are its last steps.

    Args:
        dataset: of examples or of batches.
        batched: whether it gives batches; None to tell it by its steps.
    """
    maps: list[Callable[..., Any]] = []
    outer, last = _without(dataset, ("_ShuffleDataset", *_PASSES_ON))
    buffer, batch, size, drops = max([_buffer_of(one) for one in outer], default=0), None, None, False
    if type(last).__name__ in _BATCHES and batched is not False:
        size, drops = int(last._batch_size), bool(last._drop_remainder)
        buffer *= size
        batch = functools.partial(_batched_like, last)
        (last,) = last._inputs()
    else:
        gives_batches = _gives_batches(dataset) if batched is None else batched
        if gives_batches is not False:
            return Peeled(last, (), buffer, gives_batches=gives_batches)
    steps, inner = _without(last, ("_ShuffleDataset", *_MAPS, *_PASSES_ON))
    for step in steps:
        if type(step).__name__ in _MAPS:
            maps.insert(0, step._map_func._func)
        buffer = max(buffer, _buffer_of(step))
    return Peeled(inner, tuple(maps), buffer, batch, size, drops)


def _without(dataset: Any, kinds: Sequence[str]) -> tuple[list[Any], Any]:
    """Returns the last steps of a data set that are of `kinds`, and what is before them."""
    steps = []
    while type(dataset).__name__ in kinds:
        steps.append(dataset)
        (dataset,) = dataset._inputs()
    return steps, dataset


def _buffer_of(dataset: Any) -> int:
    return int(dataset._buffer_size) if type(dataset).__name__ == "_ShuffleDataset" else 0


# Examples or batches: by the steps of a data set, and by the shapes that they give.

# What gives one example at a time.
_GIVES_EXAMPLES = (
    *("_TensorSliceDataset", "_RangeDataset", "TFRecordDatasetV2", "TextLineDatasetV2", "_UnbatchDataset"),
    *("_SparseTensorSliceDataset", "_RandomDataset"),
)
# What gives the elements of its inputs, one by one.
_KEEPS_ELEMENTS = (
    *("_ShuffleDataset", "_TakeDataset", "_SkipDataset", "CacheDataset", "_RepeatDataset", "_FilterDataset"),
    *("_ShardDataset", "_TakeWhileDataset", "_ConcatenateDataset", "_ZipDataset", "_DirectedInterleaveDataset"),
    *("_AssertCardinalityDataset", "_RestructuredDataset", *_PASSES_ON),
)


def _gives_batches(dataset: Any) -> bool | None:
    """Whether the elements of a data set are batches; None where that cannot be known."""
    kind, specs = type(dataset).__name__, tf.nest.flatten(dataset.element_spec)
    ranks = [getattr(spec, "shape", tf.TensorShape(None)).rank for spec in specs]
    if 0 in ranks:
        return False  # of a scalar there is nothing to take apart
    if kind in _BATCHES:
        return True
    if kind in _GIVES_EXAMPLES:
        return False
    if kind in _KEEPS_ELEMENTS:
        # The first input of this one says which of the others is next.
        inputs = dataset._inputs()[1:] if kind == "_DirectedInterleaveDataset" else dataset._inputs()
        known = {_gives_batches(one) for one in inputs}
        return known.pop() if len(known) == 1 else None
    if kind in _MAPS:
        (inner,) = dataset._inputs()
        return True if _gives_batches(inner) and _keeps_rows(dataset) else False if not _may_give(inner) else None
    if any(map(_may_give, dataset._inputs())) or None in ranks:
        return None
    first = [spec.shape[0] for spec in specs]
    if None in first:
        return None if set(first) == {None} else False
    return None if len(first) > 1 and len(set(first)) == 1 else False


def _may_give(dataset: Any) -> bool:
    return _gives_batches(dataset) is not False


def _keeps_rows(mapped: Any) -> bool:
    """Whether a function that is mapped over batches gives as many rows as it gets, as far as shapes tell."""
    (inner,) = mapped._inputs()
    rows = 7  # any number

    def sized(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
            return spec
        return tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype)

    element = tf.nest.map_structure(sized, inner.element_spec)
    arguments = element if type(element) is tuple else (element,)
    try:
        given = tf.function(mapped._map_func._func).get_concrete_function(*arguments).structured_outputs
    except Exception:  # whatever a function of a user raises for this size
        given = None
    shapes = [getattr(leaf, "shape", tf.TensorShape(None)) for leaf in tf.nest.flatten(given)]
    return bool(shapes) and all(shape.rank and shape[0] in (rows, None) for shape in shapes)


# The order of a data set: what settles it, and how it is settled anew each epoch.

# What an element's function may hold that makes each process go another way.
_RANDOM = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Gamma|Poisson.*|Shuffle)|(Truncated|Parameterized).*Normal"
)


def is_shuffled_anew(dataset: Any) -> bool:
    """Whether a data set has an order of its own in every process: no seed settles it, or chance in its functions."""
    is_shuffle = type(dataset).__name__ == "_ShuffleDataset"
    if _own_seeds(dataset) == [0, 0] if is_shuffle else _has_own_orders(dataset):
        return True
    return is_unsettled(dataset) or any(map(is_shuffled_anew, dataset._inputs()))


def is_unsettled(dataset: Any) -> bool:
    """Whether something in a data set leaves its order to chance that is no step which `Reseeded` makes anew."""
    kind = type(dataset).__name__
    if kind == "_RandomDataset" and _own_seeds(dataset) == [0, 0]:
        return True
    picks = kind in ("_FilterDataset", "_TakeWhileDataset")
    for wrapper in dataset._functions():
        if any(_leaves_to_chance(body, picks) for body in _bodies(wrapper)):
            return True
    return any(map(is_unsettled, dataset._inputs()))


def _bodies(wrapper: Any) -> list[Any]:
    """Returns the nodes of a function of a data set, and of each function that it calls."""
    graph = wrapper.function.graph.as_graph_def()
    return [graph.node, *(function.node_def for function in graph.library.function)]


def _leaves_to_chance(nodes: Any, picks: bool) -> bool:
    """Whether a function's data sets have an order of their own, or what it `picks` is random."""
    by_name = {node.name: node for node in nodes}

    def is_zero(name: str) -> bool:
        node = by_name.get(name.split(":")[0])
        return node is not None and node.op == "Const" and not tf.make_ndarray(node.attr["value"].tensor).any()

    for node in nodes:
        if node.op.startswith("ShuffleDataset") and all(map(is_zero, node.input[2:4])):
            return True
        if "deterministic" in node.attr and node.attr["deterministic"].s == b"false":
            return True
        if picks and _RANDOM.fullmatch(node.op) and not node.attr["seed"].i and not node.attr["seed2"].i:
            return True
    return False


def shuffle_seeds(dataset: Any) -> list[list[int]]:
    """Returns the seeds of all shuffling that a data set was made by: where they are the same, so is the order."""
    own = [_own_seeds(dataset)] if type(dataset).__name__ in ("_ShuffleDataset", "_RandomDataset") else []
    return own + [seeds for one in dataset._inputs() for seeds in shuffle_seeds(one)]


def _own_seeds(dataset: Any) -> list[int]:
    return [int(dataset._seed), int(dataset._seed2)]


def has_orders(dataset: Any) -> bool:
    """Whether a data set may come in another order each time it is read."""
    return _has_own_orders(dataset) or any(map(has_orders, dataset._inputs()))


def _has_own_orders(step: Any) -> bool:
    kind = type(step).__name__
    if kind == "_ShuffleDataset":
        return step._reshuffle_each_iteration is not False or _own_seeds(step) == [0, 0]
    return getattr(step, "_deterministic", "") == "false" or (kind == _PARALLEL_INTERLEAVE and not _is_in_turn(step))


_PARALLEL_INTERLEAVE = "_ParallelInterleaveDataset"


def _is_in_turn(interleaved: Any) -> bool:
    """Whether elements are interleaved in a fixed order, which only the operation knows."""
    try:
        text = interleaved._as_serialized_graph(
            external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE
        ).numpy()
        nodes = tf.compat.v1.GraphDef.FromString(text).node
    except (tf.errors.OpError, ValueError):  # not all that a data set reads can be written down
        return True
    kinds = "ParallelInterleaveDataset"
    return not any(node.op.startswith(kinds) and node.attr["deterministic"].s == b"false" for node in nodes)


class Reseeded:
    """A data set that is made anew for each epoch, with seeds for all its shuffling.

    TensorFlow's own seeds give another order each time that a process reads a data set, so that the order of an epoch
    depends on how often it was read before.

    Args:
        dataset: whose `has_orders` is true.

    Raises:
        ValueError: something is done after the shuffling that cannot be done anew; the message names it.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self._caches: dict[int, tf.data.Dataset] = {}
        self._functions: dict[int, Callable[..., Any]] = {}
        self.num_seeds = len(shuffle_seeds(dataset))
        _check_steps(dataset)

    def with_seeds(self, seeds: Sequence[int], seeds_of_caches: Sequence[int]) -> tf.data.Dataset:
        """Returns the data set; what is cached keeps the order that it has in the first call.

        Args:
            seeds: one for each of `shuffle_seeds`, less than 2**63.
            seeds_of_caches: those for what is shuffled before it is cached.
        """
        with without_global_seed():
            return self._made(self._dataset, iter(list(zip(seeds, seeds_of_caches, strict=True))), False)

    def _made(self, step: Any, seeds: Iterator[tuple[int, int]], is_cached: bool) -> tf.data.Dataset:
        kind = type(step).__name__
        if id(step) in self._caches or not has_orders(step):
            for _ in shuffle_seeds(step):
                next(seeds)
            return self._caches.get(id(step), step)
        if kind == "_ShuffleDataset":
            seed = next(seeds)[is_cached]
            (inner,) = step._inputs()
            inner = self._made(inner, seeds, is_cached)
            if not _has_own_orders(step):
                return inner.shuffle(step._buffer_size, _joined_seeds(step), reshuffle_each_iteration=False)
            return inner.shuffle(step._buffer_size, seed, reshuffle_each_iteration=False)
        if kind == "_RandomDataset":
            next(seeds)
        inputs = [self._made(one, seeds, is_cached or kind == "CacheDataset") for one in step._inputs()]
        made = _STEPS[kind](step, self._once, *inputs)
        if kind == "CacheDataset":
            self._caches[id(step)] = made
        return made

    def _once(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, traced in the first epoch only."""
        return self._functions.setdefault(id(function), tf.function(function))


def _joined_seeds(step: Any) -> int:
    first, second = _own_seeds(step)
    return first * 31 + second + 1


def _check_steps(step: Any) -> None:
    if has_orders(step):
        if type(step).__name__ != "_ShuffleDataset" and type(step).__name__ not in _STEPS:
            raise ValueError(type(step).__name__.strip("_").removesuffix("Dataset"))
        for one in step._inputs():
            _check_steps(one)


# (step, function -> function, inputs) -> that step anew
_STEPS: dict[str, Callable[..., tf.data.Dataset]] = {
    "_MapDataset": lambda step, once, x: x.map(once(step._map_func._func)),
    "_ParallelMapDataset": lambda step, once, x: x.map(
        once(step._map_func._func), num_parallel_calls=step._num_parallel_calls, deterministic=True
    ),
    "_FilterDataset": lambda step, once, x: x.filter(once(step._predicate._func)),
    "_TakeWhileDataset": lambda step, once, x: x.take_while(once(step._predicate._func)),
    "_TakeDataset": lambda step, once, x: x.take(step._count),
    "_SkipDataset": lambda step, once, x: x.skip(step._count),
    "_RepeatDataset": lambda step, once, x: x.repeat(step._count),
    "_ShardDataset": lambda step, once, x: x.shard(step._num_shards, step._index),
    "_BatchDataset": lambda step, once, x: x.batch(step._batch_size, step._drop_remainder),
    "_ParallelBatchDataset": lambda step, once, x: x.batch(
        step._batch_size, step._drop_remainder, step._num_parallel_calls, deterministic=True
    ),
    "_PaddedBatchDataset": lambda step, once, x: x.padded_batch(
        step._batch_size, step._padded_shapes, step._padding_values, step._drop_remainder
    ),
    "_UnbatchDataset": lambda step, once, x: type(step)(x),
    "_RestructuredDataset": lambda step, once, x: type(step)(x, step.element_spec),
    "_UniqueDataset": lambda step, once, x: x.unique(),
    "_AssertCardinalityDataset": lambda step, once, x: x.apply(
        tf.data.experimental.assert_cardinality(step._expected_cardinality)
    ),
    "_GroupByWindowDataset": lambda step, once, x: x.group_by_window(
        step._key_func._func, step._reduce_func._func, window_size_func=step._window_size_func._func
    ),
    "_WindowDataset": lambda step, once, x: x.window(step._size, step._shift, step._stride, step._drop_remainder),
    "_PrefetchDataset": lambda step, once, x: x.prefetch(int(step._buffer_size)),
    "_OptionsDataset": lambda step, once, x: x.with_options(step.options()),
    "CacheDataset": lambda step, once, x: x.cache(step._filename),
    "_FlatMapDataset": lambda step, once, x: x.flat_map(step._map_func._func),
    "_InterleaveDataset": lambda step, once, x: x.interleave(
        step._map_func._func, step._cycle_length, step._block_length
    ),
    "_ParallelInterleaveDataset": lambda step, once, x: x.interleave(
        *(step._map_func._func, step._cycle_length, step._block_length, step._num_parallel_calls), deterministic=True
    ),
    "_ZipDataset": lambda step, once, *inputs: tf.data.Dataset.zip(tf.nest.pack_sequence_as(step._datasets, inputs)),
    "_ConcatenateDataset": lambda step, once, first, second: first.concatenate(second),
    "_DirectedInterleaveDataset": lambda step, once, selector, *inputs: type(step)(
        selector, inputs, step._stop_on_empty_dataset
    ),
}


@contextlib.contextmanager
def without_global_seed() -> Iterator[None]:
    """Lets seeded operations that are made within depend on their own seeds alone, not on tf.random.set_seed."""
    eager_context = context.context()
    before, eager_context._seed = eager_context._seed, None
    try:
        yield
    finally:
        eager_context._seed = before


def _batched_like(like: Any, examples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    if type(like).__name__ == "_PaddedBatchDataset":
        shapes, values, spec = like._padded_shapes, like._padding_values, examples.element_spec
        if isinstance(shapes, tuple) and isinstance(spec, tuple) and len(spec) == len(shapes) + 1:  # a weight was added
            shapes, values = (*shapes, []), (*values, tf.zeros([], spec[-1].dtype))
        return examples.padded_batch(size, shapes, values)
    return examples.batch(size, num_parallel_calls=tf.data.AUTOTUNE)


def with_own_memory(dataset: Any) -> Any:
    """Returns a data set that shares no memory with Python.

    What a Python function gives to a data set, TensorFlow takes without a copy, and may write into it later where it
    believes to be the only one who reads it: into the arrays that the batches were views of.
    """
    if not isinstance(dataset, tf.data.Dataset) or not _calls_python(dataset):
        return dataset
    return dataset.map(_copied, num_parallel_calls=None)


def _copied(*element: Any) -> Any:
    element = element if len(element) > 1 else element[0]

    def copy(leaf: Any) -> Any:
        is_tensor = isinstance(leaf, tf.Tensor) and leaf.dtype.is_numpy_compatible and leaf.dtype != tf.variant
        return tf.raw_ops.DeepCopy(x=leaf) if is_tensor else leaf

    return tf.nest.map_structure(copy, element, expand_composites=True)


def _calls_python(dataset: Any) -> bool:
    """Whether a data set runs functions of Python, somewhere."""
    for wrapper in dataset._functions():
        if any(node.op in _PYTHON for body in _bodies(wrapper) for node in body):
            return True
    return any(map(_calls_python, dataset._inputs()))


_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def first_copy(variable: Any) -> tf.Tensor:
    """Returns what the first replica of this process holds of `variable`, from cross-replica context."""
    variable = getattr(variable, "value", variable) if not isinstance(variable, tf.Variable) else variable
    return variable.values[0].read_value() if hasattr(variable, "values") else tf.convert_to_tensor(variable)
