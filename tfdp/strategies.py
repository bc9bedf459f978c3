"""The strategies that users choose: synchronous training of Keras models on several devices and machines."""

import contextlib
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdp import agreement, deadline, keras_seam, routing, tf_seam, versions, watchdog
from tfdp import compression as compression_lib
from tfdp import topology as topology_lib
from tfdp.buckets import DEFAULT_BUCKET_BYTES
from tfdp.callbacks.habits import adapted
from tfdp.compression import describe
from tfdp.compression_state import CompressionState
from tfdp.data.sharding import shard
from tfdp.reducer import GradientReducer
from tfdp.topology import Topology
from tfdp.traffic import CompressionReport

_LOG = logging.getLogger("tfdp")

# A legitimate wait, such as for the chief that evaluates or saves, must fit in.
DEFAULT_COLLECTIVE_TIMEOUT_SECONDS = 1800.0
DEFAULT_START_TIMEOUT_SECONDS = 60.0


class _DataParallel:
    """What both strategies add to TensorFlow's."""

    _reducer: GradientReducer
    _topology: Topology

    @property
    def num_workers(self) -> int:
        """The number of processes that train together."""
        return 1

    @property
    def worker(self) -> int:
        """The rank of this process among them; 0 is the chief, which saves and reports."""
        return 0

    @property
    def topology(self) -> Topology:
        """Which replicas share a host, a rack, .."""
        return self._topology

    @property
    def compression_state(self) -> CompressionState:
        """What compression remembers on the replicas of this process, for `tf.train.Checkpoint(strategy_state=...)`."""
        return self._reducer.state

    def compression_report(self) -> CompressionReport:
        """Returns, for every variable that has had a gradient: its compressor, its bytes a step and its state's memory.

        `print` shows it as a table.
        """
        return self._reducer.report()

    def scope(self) -> Any:
        """Returns the context manager under which models, optimizers and metrics are made; see tf.distribute.Strategy.

        Raises:
            RuntimeError: TF_CONFIG names another cluster than when the strategy was made.
        """
        self._check_still_valid()
        return super().scope()  # type: ignore[misc]

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs `fn` on every replica, each with its part of `args` and `kwargs`; see tf.distribute.Strategy.

        Raises:
            TypeError: `fn` is the training step of a model of tf_keras (Keras 2).
        """
        versions.check_function(fn)
        keras_seam.make_global_seeds(self)
        return super().run(fn, args=args, kwargs=kwargs, options=options)  # type: ignore[misc]

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduces `value` over replicas, and over `axis` of each where it has one.

        Beyond tf.distribute.Strategy.reduce it takes nested values, and scalars whatever the axis.

        Args:
            reduce_op: "SUM" or "MEAN", or a tf.distribute.ReduceOp.
            value: a value per replica, or a nest (tuple, list, dict) of them.
            axis: an axis of the values of rank 1 and more to reduce too; None reduces over replicas only.
        """
        if isinstance(value, tuple | list | dict):
            return tf.nest.map_structure(lambda leaf: self.reduce(reduce_op, leaf, axis), value)
        if isinstance(value, int | float | complex):
            value = tf.convert_to_tensor(value)
        results = self.experimental_local_results(value)  # type: ignore[attr-defined]
        if any(isinstance(result, int | float | complex) for result in results):  # of a step that runs eagerly
            tensors = map(tf.convert_to_tensor, results)
            value = self.experimental_distribute_values_from_function(lambda _: next(tensors))  # type: ignore[attr-defined]
            results = self.experimental_local_results(value)  # type: ignore[attr-defined]
        if axis is not None and all(getattr(result, "shape", tf.TensorShape([])).rank == 0 for result in results):
            axis = None
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def most_steps(self, steps: int | None, wanted: int | None) -> int | None:
        """Returns the most steps that any worker has to do, or None where one does not know; all workers must call it.

        Args:
            steps: what this worker has to do, if it knows.
            wanted: what its caller has asked for, if anything: `steps_per_epoch` or `steps`.

        Raises:
            ValueError: workers are asked for different numbers of steps.
        """
        del wanted
        return steps

    def everyones(self, topic: str, value: Any, *, within_training: bool = False) -> list[Any]:
        """Returns the `value` (of JSON) of every worker, by rank; all workers must call it with the same `topic`.

        Args:
            topic: what is about to happen.
            value: of this worker.
            within_training: whether to wait for the others as long as a step would, not only as long as the start of
                the strategy.

        Raises:
            ValueError: another worker is about to do something else.
            RuntimeError: a worker did not come in time.
        """
        del topic, within_training
        return [value]

    def all_come(self, topic: str, timeout_seconds: float) -> bool:
        """Returns whether all workers call this within `timeout_seconds`; the same on all that do."""
        del topic, timeout_seconds
        return True

    def leave(self, timeout_seconds: float) -> None:
        """Waits for all workers to come out of a call whose last collective they share, at most for a while."""
        del timeout_seconds

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any = None) -> Any:
        """Splits the batches of `dataset` over all replicas; see tf.distribute.Strategy."""
        return super().experimental_distribute_dataset(tf_seam.with_own_memory(dataset), options)  # type: ignore[misc]

    def distribute_datasets_from_function(self, dataset_fn: Callable[..., Any], options: Any = None) -> Any:
        """Gives each worker the batches of the data set that `dataset_fn` returns; see tf.distribute.Strategy."""

        @functools.wraps(dataset_fn)
        def with_own_memory(context: Any) -> tf.data.Dataset:
            return tf_seam.with_own_memory(dataset_fn(context))

        return super().distribute_datasets_from_function(with_own_memory, options)  # type: ignore[misc]

    def _check_still_valid(self) -> None:
        pass


class MirroredStrategy(_DataParallel, tf.distribute.MirroredStrategy):
    """Trains on several devices of one machine, with the result of one device.

    Example:
        >>> import keras, tfdp
        >>> strategy = tfdp.MirroredStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        compression: Any = "none",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
        topology: Topology | str | None = None,
        algorithm: str = "auto",
    ) -> None:
        """Makes a replica on each of `devices`.

        Args:
            devices: names such as "/gpu:0"; None takes all logical GPUs, or all logical CPUs where there are none.
            compression: what the devices send to each other instead of gradients: a name such as "bf16" or "int8" (see
                `tfdp.compression.get`) or a `tfdp.compression.Compressor`.
            bucket_bytes: bytes of gradients that are reduced together at most.
            cross_device_ops: how devices reduce; None adds up on one device where all are CPUs of this process, and
                leaves the choice to TensorFlow (NCCL) elsewhere.
            topology: which devices have fast links to each other, such as
                `Topology.from_cluster(None, 4).with_islands({"localhost": [[0, 1], [2, 3]]})`, or its JSON, or the path
                of a file with it; None takes TFDP_TOPOLOGY from the environment, if that is of one process, or else all
                alike.
            algorithm: how gradients are added up: "auto", "flat", "hierarchical" or "tree"; see docs/topology.md.

        Raises:
            ValueError: `devices` are empty, repeated or unknown, or an option is out of range.
            RuntimeError: Python, TensorFlow or Keras are not supported.
        """
        versions.check()
        compressor = compression_lib.get(compression)
        check_bucket_bytes(bucket_bytes)
        routing.check_algorithm(algorithm)
        _configure_devices(os.environ)
        names = check_devices(devices)
        if cross_device_ops is None and all("CPU" in name.upper() for name in names):
            # TensorFlow's own sum begins with a buffer that is free: from three on its rounding is left to chance.
            cross_device_ops = tf.distribute.ReductionToOneDevice(accumulation_fn=tf_seam.sum_in_order)
        tf.distribute.Strategy.__init__(self, tf_seam.MirroredExtended(self, names, cross_device_ops))
        self._topology = routing.find_topology(topology, None, len(names))
        plan = topology_lib.plan(self._topology, algorithm)
        self._reducer = GradientReducer(
            routing.routes_of_process(self, plan),
            compressor,
            bucket_bytes,
            agree=lambda topic, lines, names=(): None,
            layout=routing.layout_of(plan, self._topology, bucket_bytes),
        )
        keras_seam.install(_reducer_of, shard, adapted)


class MultiWorkerMirroredStrategy(_DataParallel, tf.distribute.MultiWorkerMirroredStrategy):
    """Trains on the devices of several processes, on one or more machines, with the result of one device.

    Every worker runs the same program. Example of worker 0's TF_CONFIG, of two:
    `{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}`.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        *,
        devices: Sequence[str] | None = None,
        compression: Any = "none",
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        start_timeout_seconds: float | None = None,
        topology: Topology | str | None = None,
        algorithm: str = "auto",
    ) -> None:
        """Joins the cluster, waiting for the other workers, and makes a replica on each of `devices` of this process.

        Args:
            cluster_resolver: who takes part; None reads TF_CONFIG. Without a cluster there is one worker.
            devices: names such as "/gpu:0", as many on every worker; None takes all logical GPUs, or all logical CPUs
                where there are none.
            compression: what replicas send to each other instead of gradients: a name such as "bf16" or "int8" (see
                `tfdp.compression.get`) or a `tfdp.compression.Compressor`; the same on every worker.
            bucket_bytes: bytes of gradients that travel together at most; the same on every worker.
            communication_options: TensorFlow's options for collectives. Its `timeout_seconds`, 1800 by default, bounds
                the wait for a worker within a step.
            start_timeout_seconds: how long to wait for the other workers to come; None takes TFDP_START_TIMEOUT from
                the environment, or 60 seconds.
            topology: on which hosts and in which racks the workers are, or its JSON, or the path of a file with it;
                None takes TFDP_TOPOLOGY from the environment, or else the hosts of the workers' addresses. The same on
                every worker.
            algorithm: how gradients are added up, the same on every worker: "flat", all replicas alike;
                "hierarchical", on each host first, then between hosts, where alone compression acts; "tree", in pairs;
                "auto", hierarchical where replicas share a host and others do not, else flat. See docs/topology.md.

        Raises:
            ValueError: the cluster or an option is wrong, or the workers disagree on them.
            RuntimeError: the versions are not supported, TensorFlow has started already, this worker's port is taken,
                or not all workers came in time.
        """
        versions.check()
        compressor = compression_lib.get(compression)
        check_bucket_bytes(bucket_bytes)
        routing.check_algorithm(algorithm)
        self._tf_config = None if cluster_resolver else os.environ.get("TF_CONFIG", "")
        self._cluster = cluster = _cluster(cluster_resolver)
        timeout_seconds = _start_timeout_seconds(start_timeout_seconds, os.environ)
        options = communication_options or tf.distribute.experimental.CommunicationOptions()
        self._limit_seconds = options.timeout_seconds or DEFAULT_COLLECTIVE_TIMEOUT_SECONDS
        options = _without_timeout(options)
        check_device_names(devices)
        _configure_devices(os.environ)
        ready_file = os.environ.get("TFDP_READY_FILE", "")
        _touch(ready_file and ready_file + ".waiting")
        with _bounded_start(cluster, timeout_seconds):
            extended = tf_seam.MultiWorkerExtended(self, cluster, devices, options, timeout_seconds)
        tf.distribute.Strategy.__init__(self, extended)
        _touch(ready_file)
        _watch_collectives(self, cluster, self._limit_seconds)
        self._agreement = agreement.Agreement(cluster, tf_seam.strategy_number(self), timeout_seconds)
        extended.agree = self._agreement.agree
        extended.agree(
            "the strategy's options",
            [
                f"tfdp.MultiWorkerMirroredStrategy with compression={describe(compressor)}",
                f"bucket_bytes={bucket_bytes}",
                f"algorithm={algorithm!r}",
                f"{len(extended.worker_devices)} devices in each worker",
                f"TensorFlow {tf.__version__}",
            ],
        )
        self._topology = self._agreed_topology(topology, extended)
        plan = topology_lib.plan(self._topology, routing.suited(algorithm, self._topology, extended.worker_devices))
        self._reducer = GradientReducer(
            routing.routes_of_worker(self, plan, options, is_ring=algorithm == "flat"),
            compressor,
            bucket_bytes,
            extended.agree,
            self._agreement.exchange,
            routing.layout_of(plan, self._topology, bucket_bytes),
        )
        keras_seam.install(_reducer_of, shard, adapted)

    def _agreed_topology(self, wanted: Topology | str | None, extended: Any) -> Topology:
        """Returns where the replicas are; raises on every worker where one of them has no topology, or another one."""
        try:
            found = routing.find_topology(wanted, self._cluster, len(extended.worker_devices))
        except (TypeError, ValueError) as error:
            extended.agree("the topology", [f"{type(error).__name__}: {error}"])
            raise
        extended.agree("the topology", found.lines(), found.line_names())
        return found

    @property
    def num_workers(self) -> int:
        return self._cluster.num_workers if self._cluster is not None else 1

    @property
    def worker(self) -> int:
        return self._cluster.rank if self._cluster is not None else 0

    def everyones(self, topic: str, value: Any, *, within_training: bool = False) -> list[Any]:
        return self._agreement.exchange(topic, value, self._limit_seconds if within_training else None)

    def leave(self, timeout_seconds: float) -> None:
        self._agreement.leave(timeout_seconds)

    def all_come(self, topic: str, timeout_seconds: float) -> bool:
        return self._agreement.all_come(topic, timeout_seconds)

    def most_steps(self, steps: int | None, wanted: int | None) -> int | None:
        ours = [None if count is None else int(count) for count in (steps, wanted)]
        everyones = self.everyones("the number of steps of an epoch", ours, within_training=True)
        all_steps, all_wanted = zip(*everyones, strict=True)
        if len(set(all_wanted)) > 1:
            received = ", ".join(f"worker {rank}: {one}" for rank, one in enumerate(all_wanted))
            raise ValueError(
                "`steps_per_epoch` of `fit`, and `steps` of `evaluate` and `predict`, must be the same on all workers. "
                f"Received: {received}."
            )
        return None if None in all_steps else max(all_steps)

    def _check_still_valid(self) -> None:
        now = os.environ.get("TF_CONFIG", "")
        if (
            self._tf_config is None
            or now == self._tf_config
            or topology_lib.cluster_from_environment(os.environ) is None
        ):
            return
        raise RuntimeError(
            "TF_CONFIG has changed since this strategy was made, which trains with "
            f"{self.num_replicas_in_sync} replica(s). Set TF_CONFIG before the strategy is made. "
            f"Received: TF_CONFIG={now!r}, then: {self._tf_config!r}."
        )


def check_bucket_bytes(bucket_bytes: Any) -> None:
    """Raises a ValueError or TypeError unless `bucket_bytes` is a positive integer."""
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int):
        raise TypeError(f"`bucket_bytes` must be an integer, in bytes. Received: {bucket_bytes!r}.")
    if bucket_bytes < 1:
        raise ValueError(f"`bucket_bytes` must be at least 1. Received: bucket_bytes={bucket_bytes}.")


def check_devices(devices: Sequence[str] | None) -> list[str]:
    """Returns the names of the devices to use, all of this process that there are where `devices` is None.

    Raises:
        TypeError: `devices` is no list of names.
        ValueError: there are none, one is named twice, or one does not exist.
    """
    check_device_names(devices)
    if devices is None:
        return [device.name for device in tf_seam.default_devices()]
    known = [tf_seam.device_index(device.name) for device in tf.config.list_logical_devices()]
    for device in devices:
        if tf_seam.device_index(device) not in known:
            names = ", ".join(f"{kind}:{index}" for kind, index in known)
            raise ValueError(f"`devices` must name devices of this process: {names}. Received: {device!r}.")
    return list(devices)


def check_device_names(devices: Sequence[str] | None) -> None:
    """Raises a TypeError or ValueError unless `devices` is None or names devices, each once.

    Whether they exist is not asked: that would start TensorFlow.
    """
    if devices is None:
        return
    if isinstance(devices, str) or not all(isinstance(device, str) for device in devices):
        raise TypeError(f"`devices` must be a list of names such as ['/gpu:0', '/gpu:1']. Received: {devices!r}.")
    if not devices:
        raise ValueError("`devices` must name at least one device, or be None for all. Received: [].")
    wanted = [tf_seam.device_index(device) for device in devices]
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"`devices` must not name a device twice. Received: {list(devices)}.")


def _reducer_of(strategy: tf.distribute.Strategy) -> GradientReducer | None:
    return strategy._reducer if isinstance(strategy, _DataParallel) else None


def _cluster(resolver: tf.distribute.cluster_resolver.ClusterResolver | None) -> topology_lib.Cluster | None:
    if resolver is None:
        found = topology_lib.find_cluster(os.environ)
        cluster = found.cluster
        for warning in found.warnings:
            _LOG.warning("tfdp: %s", warning)
    else:
        jobs = resolver.cluster_spec().as_dict()
        source = f"the cluster of {type(resolver).__name__}"
        cluster = topology_lib.make_cluster(jobs, resolver.task_type, resolver.task_id, source=source) if jobs else None
    if cluster is None:
        _LOG.warning(
            "tfdp.MultiWorkerMirroredStrategy: no cluster in TF_CONFIG; training with this one worker. "
            "`tfdp run -n 2 train.py` starts two."
        )
    return cluster


def _start_timeout_seconds(value: float | None, environment: Mapping[str, str]) -> float:
    text = str(environment.get("TFDP_START_TIMEOUT") or DEFAULT_START_TIMEOUT_SECONDS) if value is None else str(value)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        name = "TFDP_START_TIMEOUT" if value is None else "start_timeout_seconds"
        raise ValueError(f"`{name}` must be a positive number of seconds. Received: {text!r}.")
    return seconds


def _without_timeout(options: Any) -> Any:
    """Returns the options without their time limit, which `watchdog` keeps."""
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=options.bytes_per_pack, implementation=options.implementation
    )


def _watch_collectives(strategy: Any, cluster: topology_lib.Cluster | None, seconds: float) -> None:
    if cluster is None or cluster.num_workers == 1:
        return
    others = ", ".join(cluster.name(rank) for rank in range(cluster.num_workers) if rank != cluster.rank)
    watchdog.watch(
        strategy,
        seconds,
        f"tfdp: {cluster.name(cluster.rank)} has waited {seconds:g} s in one call of TensorFlow, most likely for one "
        f"of the other workers to come to the same point: {others}. See their logs: every worker must make the same "
        "steps. `communication_options` has the limit, `timeout_seconds`.",
    )


def _configure_devices(environment: Mapping[str, str]) -> None:
    """Splits the CPU into as many logical devices as TFDP_DEVICES_PER_WORKER says, where there is no GPU."""
    text = environment.get("TFDP_DEVICES_PER_WORKER", "")
    if not text or tf_seam.runtime_has_started() or tf.config.list_physical_devices("GPU"):
        return
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TFDP_DEVICES_PER_WORKER must be an integer of at least 1. Received: {text!r}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    if tf.config.get_logical_device_configuration(cpu) is None:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(text))


@contextlib.contextmanager
def _bounded_start(cluster: topology_lib.Cluster | None, timeout_seconds: float) -> Iterator[None]:
    """Bounds the wait for the other workers, and says who failed to start and what to do, in place of TensorFlow.

    TensorFlow ends the wait of a worker for its chief with an error. Its chief waits for an hour, in a call that cannot
    be interrupted: a process of its own keeps the time.
    """
    if cluster is None or cluster.num_workers == 1:
        yield
        return
    me = cluster.name(cluster.rank)
    others = ", ".join(cluster.name(rank) for rank in range(cluster.num_workers) if rank != cluster.rank)
    waited = (
        f"tfdp: {me} waited {timeout_seconds:g} s for the other workers of its cluster, and not all came: {others}. "
        "Check that each of them was started and that their addresses can be reached from here. "
        "Set TFDP_START_TIMEOUT, in seconds, to wait longer."
    )
    try:
        with deadline.kill_after(timeout_seconds if cluster.is_chief else timeout_seconds + 15, waited):
            yield
    except tf.errors.DeadlineExceededError as error:
        raise RuntimeError(waited) from error
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"tfdp: {me} could not join its cluster of {cluster.num_workers} workers. Check that the port of "
            f"{cluster.address} is free (another process, or a second worker with the same index, may hold it), and "
            f"that these run: {others}. TensorFlow says: {error}"
        ) from error


def _touch(path: str) -> None:
    if path:
        with contextlib.suppress(OSError):
            pathlib.Path(path).touch()
