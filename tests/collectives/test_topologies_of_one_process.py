"""Replicas of one process that stand for hosts and racks add up by them, and give what all alike give."""

import numpy as np
import pytest
import sums
from integration import workers

from tfdp import compression

PROGRAM = """
import functools, pathlib, sys
import numpy as np
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
)
import keras, sums, tfdp
from collectives.test_topologies_of_one_process import COMPRESSED, LAYOUTS, NUM_DEVICES

folder = pathlib.Path(sys.argv[1])
devices = [f"/cpu:{i}" for i in range(8)]

def make(num_devices, **options):
    return tfdp.MirroredStrategy(devices[:num_devices], bucket_bytes=4096, **options)

for name, (topology, num_devices, algorithm) in LAYOUTS.items():
    strategy = make(num_devices, topology=topology, algorithm=algorithm)
    np.savez(folder / f"{name}.npz", **sums.sums(strategy, keras.optimizers.SGD(1.0)))
for name, compression in COMPRESSED.items():
    by_hosts = make(4, topology=sums.PAIRS, compression=compression())
    alone = make(2, compression=compression())
    tables = {"by hosts": None, "alone": sums.sums_of_hosts([(0, 1), (2, 3)], 4)}
    sizes, reports = {}, []
    for kind, strategy in (("by hosts", by_hosts), ("alone", alone)):
        optimizer = keras.optimizers.SGD(1.0)
        np.savez(folder / f"{name} {kind}.npz", **sums.sums(strategy, optimizer, tables[kind]))
        parts = [part.states.values() for part in strategy.compression_state.parts()]
        sizes[kind] = [sum(leaf.nbytes for leaves in part for leaf in leaves) for part in parts]
        reports.append(strategy.compression_report())
    np.savez(folder / f"{name} state bytes.npz", **sizes)
    (folder / f"{name}.txt").write_text(" ".join(f"{one.num_members} {one.member} {one.wire_bytes}" for one in reports))

# By TensorFlow's own strategy.
for num_devices in NUM_DEVICES:
    for kind in ("auto", "tree"):
        topology = tfdp.Topology.from_hosts(["a"] * (num_devices // 2) + ["b"] * (num_devices - num_devices // 2))
        strategy = tf.distribute.MirroredStrategy(
            devices[:num_devices], cross_device_ops=tfdp.TopologyAllReduce(topology, algorithm=kind)
        )

        def replica():
            context = tf.distribute.get_replica_context()
            one = 10.0 ** tf.cast(context.replica_id_in_sync_group, tf.float32)
            total = context.all_reduce("SUM", [tf.fill([3], one), one, tf.fill([2, 2], one), tf.zeros([0, 4])])
            rows = tf.IndexedSlices(tf.fill([1, 2], one), tf.constant([1]), tf.constant([3, 2]))
            return {
                **dict(zip(("vector", "scalar", "matrix", "empty"), total)),
                "mean": context.all_reduce("MEAN", one),
                "int64": context.all_reduce("SUM", tf.constant(100003, tf.int64)),
                "complex": context.all_reduce("SUM", tf.complex(one, -one)),
                "rows": tf.convert_to_tensor(context.all_reduce("SUM", rows)),
            }

        values = tf.function(lambda: strategy.run(replica))()
        by_name = {name: np.stack(strategy.experimental_local_results(value)) for name, value in values.items()}
        np.savez(folder / f"{kind} {num_devices}.npz", **by_name)
wrong = tf.distribute.MirroredStrategy(devices[:3], cross_device_ops=tfdp.TopologyAllReduce(topology))
try:
    tf.function(lambda: wrong.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([2]))))()
except ValueError as error:
    (folder / "wrong.txt").write_text(str(error))
"""
LAYOUTS = {
    "2 x 2": (sums.PAIRS, 4, "auto"),
    "2 x 2 crossed": (sums.CROSSED, 4, "auto"),
    "4 x 1": (sums.ALONE, 4, "hierarchical"),
    "1 x 4": (sums.TOGETHER, 4, "hierarchical"),
    "1 x 4 flat": (sums.TOGETHER, 4, "flat"),
    "3 + 1": (sums.THREE_AND_ONE, 4, "auto"),
    "2 racks x 2 hosts x 2": (sums.RACKS_OF_PAIRS, 8, "auto"),
    "2 racks x 2 hosts": (sums.IN_RACKS, 4, "hierarchical"),
    "2 racks x 2 hosts x 2 in pairs": (sums.RACKS_OF_PAIRS, 8, "tree"),
    "4 in pairs": (sums.ALONE, 4, "tree"),
    "3 + 1 in pairs": (sums.THREE_AND_ONE, 4, "tree"),
    "2 islands of a host": (
        '{"devices_per_worker": 4, "hosts": [{"name": "a", "workers": [0], "islands": [[0, 3], [1, 2]]}]}',
        4,
        "auto",
    ),
}


COMPRESSED = {
    "int8": lambda: compression.error_feedback(compression.int8()),
    "bf16": compression.bf16,
    "top_k": lambda: compression.error_feedback(compression.top_k(0.25)),
}
NUM_DEVICES = (1, 2, 3, 4, 5, 7)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what came of all layouts."""
    folder = tmp_path_factory.mktemp("topologies")
    (process,) = workers.finish([workers.start(PROGRAM, folder)], deadline_seconds=200.0)
    if process.status != 0:
        (folder / "how it ended").write_text(workers.report([process]))
    return folder


def of(results, name):
    path = results / f"{name}.npz"
    if not path.exists():
        pytest.fail((results / "how it ended").read_text())
    return np.load(path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_sums_of_a_topology_are_right_and_bitwise_equal_on_all_replicas(results, name):
    sums.assert_sums(of(results, name), LAYOUTS[name][1])


@pytest.mark.parametrize("name", COMPRESSED)
def test_hosts_compress_as_replicas_in_their_place_would(results, name):
    by_hosts, alone = of(results, f"{name} by hosts"), of(results, f"{name} alone")
    for length in sums.LENGTHS:
        received = by_hosts[str(length)]
        assert (received == received[0]).all()
        np.testing.assert_allclose(received[0], alone[str(length)][0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["int8", "top_k"])
def test_a_host_has_one_state_whose_parts_its_replicas_keep(results, name):
    kept = of(results, f"{name} state bytes")
    of_one_host = kept["by hosts"][:2]
    assert sum(of_one_host) == kept["alone"][0] > 0
    assert max(of_one_host) <= 0.6 * kept["alone"][0]


def test_the_report_counts_what_a_host_sends(results):
    of(results, "int8 alone")
    num_hosts, host, of_host, num_replicas, replica, of_replica = (results / "int8.txt").read_text().split()
    assert (num_hosts, host, num_replicas, replica) == ("2", "host", "2", "replica")
    assert int(of_host) == int(of_replica) > 1000


@pytest.mark.parametrize("kind", ["auto", "tree"])
@pytest.mark.parametrize("num_devices", NUM_DEVICES)
def test_tensorflows_own_strategy_adds_up_any_number_of_devices_by_a_topology(results, num_devices, kind):
    received, total = of(results, f"{kind} {num_devices}"), int("1" * num_devices)
    for name, shape in {"vector": (3,), "scalar": (), "matrix": (2, 2), "empty": (0, 4)}.items():
        assert received[name].shape == (num_devices, *shape)
        assert (received[name] == total).all()
    assert (received["int64"] == 100003 * num_devices).all()
    assert received["int64"].dtype == "int64"
    np.testing.assert_allclose(received["mean"], total / num_devices, rtol=1e-6)
    assert (received["complex"] == total * (1 - 1j)).all()
    np.testing.assert_array_equal(received["rows"][-1], [[0, 0], [total] * 2, [0, 0]])


def test_a_topology_of_other_replicas_is_refused(results):
    of(results, "auto 7")
    assert (results / "wrong.txt").read_text() == (
        "The topology of TopologyAllReduce must have as many replicas as the strategy, 3. Received: one of 7."
    )
