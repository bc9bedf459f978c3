"""Workers on several hosts add up on each host first, and give what all alike give."""

import json

import numpy as np
import pytest
import sums
from integration import workers

# One cluster of four workers with two devices each; its strategies see other hosts and racks in it.
PROGRAM = """
import json, os, pathlib, sys
import keras, numpy as np
import sums, tfdp
from integration.test_topologies import LAYOUTS, REFUSED

folder = pathlib.Path(sys.argv[1])
rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

def make(num_devices, **options):
    devices = ["/cpu:0", "/cpu:1"][:num_devices]
    return tfdp.MultiWorkerMirroredStrategy(devices=devices, bucket_bytes=4096, **options)

make(2)  # the first one starts TensorFlow
for name, (topology, num_devices, algorithm, compression) in LAYOUTS.items():
    strategy = make(num_devices, topology=topology, algorithm=algorithm, compression=compression)
    optimizer = keras.optimizers.SGD(1.0)
    np.savez(folder / f"{name} {rank}.npz", **sums.sums(strategy, optimizer))
    report = strategy.compression_report()
    parts = strategy.compression_state.parts()
    kept = [sum(leaf.nbytes for leaves in part.states.values() for leaf in leaves) for part in parts]
    (folder / f"{name} {rank}.json").write_text(json.dumps([report.num_members, report.member, kept]))
for name, options in REFUSED.items():
    try:
        make(1, **{option: values[min(rank, len(values) - 1)] for option, values in options.items()})
        text = "was made"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    (folder / f"{name} {rank}.txt").write_text(text)
"""
LAYOUTS = {
    "2 hosts x 2 workers": (sums.PAIRS, 1, "auto", "none"),
    "2 hosts x 2 workers crossed": (sums.CROSSED, 1, "auto", "none"),
    "3 + 1 workers": (sums.THREE_AND_ONE, 1, "auto", "none"),
    "4 hosts in 2 racks": (sums.IN_RACKS, 1, "hierarchical", "none"),
    "4 hosts in 2 racks x 2 devices": (sums.IN_RACKS, 2, "auto", "none"),
    "2 hosts x 2 workers x 2 devices": (sums.PAIRS, 2, "auto", "none"),
    "4 hosts in pairs": (sums.ALONE, 1, "tree", "none"),
    "1 host hierarchical": (sums.TOGETHER, 1, "hierarchical", "none"),
    "1 host flat": (sums.TOGETHER, 1, "flat", "none"),
    "2 hosts x 2 workers x 2 devices flat": (sums.PAIRS, 2, "flat", "none"),
    "1 host in pairs x 2 devices": (sums.TOGETHER, 2, "tree", "none"),
    "2 hosts x 2 workers bf16": (sums.PAIRS, 1, "auto", "bf16"),
    "3 + 1 workers bf16": (sums.THREE_AND_ONE, 1, "auto", "bf16"),
    "4 hosts in 2 racks x 2 devices bf16": (sums.IN_RACKS, 2, "auto", "bf16"),
}
REFUSED = {
    "other hosts": {"topology": (sums.PAIRS, sums.CROSSED)},
    "other algorithms": {"algorithm": ("flat", "tree")},
    "fewer workers": {"topology": ('{"hosts": [{"name": "a", "workers": [0, 1]}]}',)},
    "unknown algorithm": {"algorithm": ("ring",)},
    "no topology": {"topology": (3,)},
    "no topology on one worker": {"topology": (None, "nowhere.json")},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what came of all layouts on each worker."""
    folder = tmp_path_factory.mktemp("topologies")
    cluster = workers.start_cluster(PROGRAM, folder, num_workers=4, TFDP_DEVICES_PER_WORKER="2")
    ended = workers.finish(cluster, deadline_seconds=250.0)
    if any(process.status != 0 for process in ended):
        (folder / "how it ended").write_text(workers.report(ended))
    return folder


def of_all(results, name, suffix):
    paths = [results / f"{name} {rank}.{suffix}" for rank in range(4)]
    if not all(path.exists() for path in paths):
        pytest.fail((results / "how it ended").read_text())
    return paths


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_sums_of_a_topology_are_right_and_bitwise_equal_on_all_workers(results, name):
    _, num_devices, _, compression = LAYOUTS[name]
    of_workers = [np.load(path) for path in of_all(results, name, "npz")]
    joined = {key: np.concatenate([one[key] for one in of_workers]) for key in of_workers[0]}
    sums.assert_sums(joined, 4 * num_devices, tolerance=1e-6 if compression == "none" else 0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("2 hosts x 2 workers", [2, "host"]),
        ("3 + 1 workers", [2, "host"]),
        ("4 hosts in 2 racks x 2 devices", [4, "host"]),
        ("1 host hierarchical", [1, "host"]),
        ("1 host flat", [4, "replica"]),
        ("1 host in pairs x 2 devices", [4, "worker"]),
    ],
)
def test_compression_acts_between_hosts(results, name, expected):
    for path in of_all(results, name, "json"):
        assert json.loads(path.read_text())[:2] == expected


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("other hosts", ["ValueError: Workers must agree on the topology."]),
        ("other algorithms", ["ValueError: Workers must agree on the strategy's options. Received: \"algorithm="]),
        ("fewer workers", ["ValueError: `topology` must place 4 worker(s) of 1 device(s) each. Received: 2 worker(s)"]),
        ("unknown algorithm", ["`algorithm` must be one of 'auto', 'flat', 'hierarchical', 'tree'. Received: alg"]),
        ("no topology on one worker", ["ValueError: Workers must agree on the topology. Received:", "nowhere.json"]),
        ("no topology", ["TypeError: `topology` must be a tfdp.Topology, or its JSON, or a path. Received: 3."]),
    ],
)
def test_what_contradicts_or_does_not_fit_is_refused_on_all_workers(results, name, messages):
    for path in of_all(results, name, "txt"):
        for message in messages:
            assert message in path.read_text()
