"""MultiWorkerMirroredStrategy in several processes gives what one device gives, or ends with an error."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
import trainings
from integration import workers

import tfdp

# Trainings, in one set of processes for each layout

# A strategy must be made before TensorFlow starts.
START = """
import atexit, functools, gc, pathlib, sys, threading
import numpy as np


def record_threads(name):
    names = sorted(thread.name for thread in threading.enumerate())
    trainings.record(folder, name, lambda: {"names": names})


atexit.register(record_threads, "threads at the end")  # what registers first runs last
import tfdp, trainings

strategy = tfdp.MultiWorkerMirroredStrategy()
folder = pathlib.Path(sys.argv[1], f"worker {strategy.cluster_resolver.task_id}")
folder.mkdir()
rank = strategy.cluster_resolver.task_id
"""
# At last one worker collects its garbage, an old optimizer among it, and the other does not.
ONE_DEVICE_EACH = """
assert strategy.num_replicas_in_sync == 2
trainings.record_all(folder, strategy, trainings.BETWEEN_TWO_WORKERS)
trainings.record_compression(folder, tfdp.MultiWorkerMirroredStrategy)
trainings.record_under_compressors(
    folder, tfdp.MultiWorkerMirroredStrategy, trainings.BETWEEN_WORKERS, lambda name: trainings.ON_THE_WIRE
)
trainings.record_own_batches(folder, strategy)
trainings.record(folder, "sums_of_two_dtypes", lambda: trainings.sums_of_two_dtypes(strategy))
trainings.record(folder, "seen", lambda: trainings.rows_that_are_seen_in_a_shuffled_epoch(strategy))

gc.disable()
train = trainings.TRAININGS["embedding"].function
train(strategy)
if rank == 1:
    gc.collect()
trainings.record(folder, "after garbage", lambda: train(strategy))
"""
# A local strategy stands beside, under which one worker at last makes more models than the other.
TWO_DEVICES_EACH = """
assert strategy.num_replicas_in_sync == 4
trainings.record_all(folder, strategy, trainings.ON_FOUR_REPLICAS)
in_small_buckets = functools.partial(tfdp.MultiWorkerMirroredStrategy, bucket_bytes=64)
trainings.record_under_compressors(folder, in_small_buckets, ("bf16", "int8", "warm_up"), lambda name: (), ())
trainings.record_own_batches(folder, strategy)

local = tfdp.MirroredStrategy()
assert local.num_replicas_in_sync == 2
train = trainings.TRAININGS["embedding"].function
trainings.record(folder, "local", lambda: train(local))
trainings.record(folder, "after local", lambda: train(strategy))
if rank == 1:
    train(local)
trainings.record(folder, "after local on one worker", lambda: train(strategy))
record_threads("threads")
"""
# Of three workers, each encodes a part of the sum once more.
THREE_WORKERS = """
assert strategy.num_replicas_in_sync == 3
trainings.record_under_compressors(
    folder, tfdp.MultiWorkerMirroredStrategy, trainings.OF_THREE_WORKERS, lambda name: ("overflow_on_one_replica",), ()
)
"""
LAYOUTS = {"2 workers": trainings.BETWEEN_TWO_WORKERS, "2 workers of 2 devices": trainings.ON_FOUR_REPLICAS}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what the trainings returned, by layout and worker."""
    folder = tmp_path_factory.mktemp("workers")
    programs = ((ONE_DEVICE_EACH, 2, 1), (TWO_DEVICES_EACH, 2, 2), (THREE_WORKERS, 3, 1))
    for layout, (program, num_workers, num_devices) in zip((*LAYOUTS, "3 workers"), programs, strict=True):
        (folder / layout).mkdir()
        settings = {"TFDP_DEVICES_PER_WORKER": str(num_devices), "TFDP_START_TIMEOUT": "20"}
        processes = workers.start_cluster(START + program, folder / layout, num_workers=num_workers, **settings)
        ended = workers.finish(processes, deadline_seconds=300.0)
        if any(worker.status != 0 for worker in ended):
            (folder / layout / "how it ended").write_text(workers.report(ended))
    return folder


def on_both_workers(results, layout, name):
    """Returns what a training gave, once it is sure that it gave the same bits on both workers."""
    return on_all_workers(results, layout, name, 2)


def on_all_workers(results, layout, name, num_workers):
    first, *others = (trainings.recorded(results / layout / f"worker {rank}", name) for rank in range(num_workers))
    for other in others:
        assert first.keys() == other.keys()
        for array in first:
            assert first[array].tobytes() == other[array].tobytes(), f"the workers differ in {array}"
    return first


@pytest.mark.parametrize("layout", [*LAYOUTS, "3 workers"])
def test_all_trainings_ran_to_their_end(results, layout):
    ended = results / layout / "how it ended"
    assert not ended.exists(), ended.read_text()


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in LAYOUTS.items() for name in names])
def test_a_training_on_several_workers_equals_one_device(results, layout, name):
    trainings.assert_equals_one_device(name, on_both_workers(results, layout, name))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_computed_by_hand_come_out(results, layout):
    trainings.assert_numbers_computed_by_hand(LAYOUTS[layout], lambda name: on_both_workers(results, layout, name))


def test_an_integer_and_a_float_in_one_reduction_keep_their_dtypes_and_digits(results):
    arrays = on_both_workers(results, "2 workers", "sums_of_two_dtypes")
    assert (arrays["integers"].dtype, arrays["floats"].dtype) == (np.int64, np.float64)
    assert (arrays["integers"].tolist(), arrays["floats"].tolist()) == ([200006], [[2.0]])


@pytest.mark.parametrize("size", [1, 7, 17, 33])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_have_the_number_and_the_order_of_the_rows(results, layout, size):
    received = on_both_workers(results, layout, "predict_of_any_size")[f"{size}_rows"]
    expected = trainings.on_one_device("predict_of_any_size")["33_rows"][:size]
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("layout", "devices_per_worker"), list(zip(LAYOUTS, (1, 2), strict=True)))
@pytest.mark.parametrize("counts", trainings.OWN_BATCHES)
def test_workers_with_different_numbers_of_batches_end_together_and_equal(results, layout, devices_per_worker, counts):
    expected = trainings.own_batches_on_one_device(counts, devices_per_worker)
    complaints = trainings.differences(
        expected, on_both_workers(results, layout, f"own batches {counts}"), trainings.SGD
    )
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", trainings.BETWEEN_WORKERS)
def test_compressed_training_is_near_one_device_and_equal_on_all_replicas(results, name):
    received = on_both_workers(results, "2 workers", f"compressed by {name}")
    trainings.assert_near_one_device(received, trainings.COMPRESSORS[name].band)
    trainings.assert_traffic(name, received)


@pytest.mark.parametrize("name", ["bf16", "int8", "warm_up"])
def test_several_devices_in_each_worker_train_in_step_under_compression(results, name):
    received = on_both_workers(results, "2 workers of 2 devices", f"compressed by {name}")
    trainings.assert_near_one_device(received, 2 * trainings.COMPRESSORS[name].band)
    trainings.assert_traffic(name, received)


@pytest.mark.parametrize("name", trainings.BETWEEN_WORKERS)
@pytest.mark.parametrize("training_name", trainings.ON_THE_WIRE)
def test_embeddings_and_overflow_come_out_right_under_compression(results, training_name, name):
    trainings.assert_right_under_compression(
        lambda wanted: on_both_workers(results, "2 workers", wanted), name, training_name
    )


@pytest.mark.parametrize("name", trainings.OF_THREE_WORKERS)
def test_three_workers_train_in_step_under_compression(results, name):
    received = on_all_workers(results, "3 workers", f"compressed by {name}", 3)
    trainings.assert_near_one_device(received, 2 * trainings.COMPRESSORS[name].band)
    skipped = on_all_workers(results, "3 workers", f"overflow_on_one_replica by {name}", 3)
    np.testing.assert_array_equal(skipped["skipped"], 1)


@pytest.mark.parametrize("name", trainings.LARGE_GRADIENTS)
def test_large_gradients_leave_all_weights_finite(results, name):
    arrays = on_both_workers(results, "2 workers", f"large gradients by {name}")
    assert np.all(np.isfinite(arrays["weights"]))


def test_dgc_gives_momentum_to_an_optimizer_without(results):
    trainings.assert_momentum_was_added(on_both_workers(results, "2 workers", "dgc"))


def test_every_gradient_goes_through_compression_once(results):
    arrays = on_both_workers(results, "2 workers", "recorded")
    assert set(arrays["times"]) == {1.0}
    assert arrays["others"] == 0


def test_losses_metrics_and_batch_statistics_never_go_through_compression(results):
    trainings.assert_only_gradients_were_dropped(on_both_workers(results, "2 workers", "dropped"))


def test_sparse_gradients_never_go_through_compression(results):
    trainings.assert_sparse_gradients_were_exact(on_both_workers(results, "2 workers", "dropped beside sparse"))


def test_a_compressor_of_the_users_own_trains(results):
    trainings.assert_near_one_device(on_both_workers(results, "2 workers", "own compressor"))


@pytest.mark.parametrize("kind", ["arrays", "data set"])
def test_workers_with_other_seeds_see_each_row_once_an_epoch(results, kind):
    """A row of a batch of 8 moves its weight by 1/8, of the last one, of 5, by 1/5."""
    moved = on_both_workers(results, "2 workers", "seen")[kind]
    times = np.isclose(moved[:, None], [2 / 8, 1 / 8 + 1 / 5, 2 / 5], atol=1e-6)
    assert np.all(times.any(axis=1)), moved
    np.testing.assert_allclose(moved.sum(), 2 * 37 / 8 + 2 * 5 * (1 / 5 - 1 / 8), rtol=1e-5)


def test_workers_may_collect_their_garbage_at_different_times(results):
    trainings.assert_equals_one_device("embedding", on_both_workers(results, "2 workers", "after garbage"))


def test_no_thread_is_left_that_could_abort_the_process_at_its_end(results):
    """One that is within a call of TensorFlow does, when Python ends: it cannot come back."""
    for rank in range(2):
        worker = results / "2 workers of 2 devices" / f"worker {rank}"
        assert set(trainings.recorded(worker, "threads")["names"].tolist()) == {"MainThread", "tfdp watchdog"}
        assert trainings.recorded(worker, "threads at the end")["names"].tolist() == ["MainThread"]


@pytest.mark.parametrize("name", ["local", "after local", "after local on one worker"])
def test_a_local_strategy_beside_meets_no_other_worker(results, name):
    trainings.assert_equals_one_device("embedding", on_both_workers(results, "2 workers of 2 devices", name))


# Workers that cannot train together

ATTEMPTS = """
import json, os, sys
import keras, numpy as np
import tfdp

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
x = np.ones((8, 4), "float32")

def attempt(name, function):
    try:
        function()
    except Exception as error:
        print(f"<{name}>{type(error).__name__}: {error}</{name}>")
    else:
        print(f"<{name}>trained</{name}>")

def train(strategy, *, hidden=1, frozen=False, optimizer="sgd", steps=None):
    with strategy.scope():
        layers = [*(keras.layers.Dense(5) for _ in range(hidden)), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.layers[0].trainable = not frozen
        model.compile(optimizer, "mse")
    model.fit(x, x[:, :1], batch_size=4, verbose=0, steps_per_epoch=steps)
"""
OTHER_OPTIONS = """
attempt("compression", lambda: tfdp.MultiWorkerMirroredStrategy(compression=("none", "bf16")[rank]))
attempt("bucket_bytes", lambda: tfdp.MultiWorkerMirroredStrategy(bucket_bytes=(100, 200)[rank]))
attempt("frozen", lambda: train(tfdp.MultiWorkerMirroredStrategy(), frozen=rank == 1))
attempt("steps", lambda: train(tfdp.MultiWorkerMirroredStrategy(), steps=(None, np.int64(1))[rank]))
attempt("the same", lambda: train(tfdp.MultiWorkerMirroredStrategy()))
"""
EXTRA_LAYER = """
attempt("extra", lambda: train(tfdp.MultiWorkerMirroredStrategy(), hidden=1 + rank))
"""
OTHER_OPTIMIZER = """
attempt("optimizer", lambda: train(tfdp.MultiWorkerMirroredStrategy(), optimizer=("sgd", "adam")[rank]))
"""


@pytest.fixture(scope="module")
def disagreements():
    """How the workers of three clusters ended that were to do different things, by rank."""
    programs = {"options": OTHER_OPTIONS, "layer": EXTRA_LAYER, "optimizer": OTHER_OPTIMIZER}
    clusters = {
        name: workers.start_cluster(ATTEMPTS + program, TFDP_START_TIMEOUT="30") for name, program in programs.items()
    }
    return {name: workers.finish(processes, deadline_seconds=90.0) for name, processes in clusters.items()}


def what_came_of(ended, name):
    """Returns what an attempt of `ATTEMPTS` ended with on each worker."""
    assert [worker.status for worker in ended] == [0, 0], workers.report(ended)
    found = [re.search(f"<{name}>(.*)</{name}>", worker.output, re.DOTALL) for worker in ended]
    assert all(found), workers.report(ended)
    return [match.group(1) for match in found]


@pytest.mark.parametrize(
    ("run", "name", "values"),
    [
        ("options", "compression", ["compression=none()", "compression=bf16()"]),
        ("options", "bucket_bytes", ["bucket_bytes=100", "bucket_bytes=200"]),
        ("options", "frozen", ["dense/kernel float32 [4, 5]", "dense_1/kernel float32 [5, 1]"]),
        ("layer", "extra", ["[5, 1]", "[5, 5]"]),
        ("optimizer", "optimizer", ["the number of steps of an epoch", "the next variable"]),
    ],
)
def test_workers_that_disagree_say_on_what_on_both_of_them(disagreements, run, name, values):
    for rank, message in enumerate(what_came_of(disagreements[run], name)):
        assert message.startswith("ValueError: Workers must agree on"), message
        assert f"here: worker {rank} (127.0.0.1:" in message
        assert f"there: worker {1 - rank} (127.0.0.1:" in message
        for value in values:
            assert value in message


def test_workers_that_are_asked_for_different_numbers_of_steps_say_so_before_they_train(disagreements):
    for message in what_came_of(disagreements["options"], "steps"):
        assert "`steps_per_epoch` of `fit`, and `steps` of `evaluate` and `predict`, must be the same" in message
        assert "Received: worker 0: None, worker 1: 1." in message


def test_workers_that_have_disagreed_can_train_together_afterwards(disagreements):
    assert what_came_of(disagreements["options"], "the same") == ["trained", "trained"]


JOIN = """
import tfdp
print("joins now")
tfdp.MultiWorkerMirroredStrategy()
print("has joined")
"""


DIES = """
import json, os, signal
import keras, numpy as np
import tfdp

rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(f"step {batch} done")
        if rank == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

strategy = tfdp.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((4000, 4), "float32")
model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[Die()])
print("trained")
"""


@pytest.fixture(scope="module")
def broken_clusters():
    """How workers ended, with their own and their peer's address, whose peer did not come, or died, or had no port."""
    alone, late, dying = (workers.free_addresses(2) for _ in range(3))
    with workers.busy_address() as busy:
        blocked = [busy, *workers.free_addresses(1)]
        places = {
            "chief": (JOIN, alone, 0),
            "worker": (JOIN, late, 1),
            "chief on a busy port": (JOIN, blocked, 0),
            "worker of a busy chief": (JOIN, blocked, 1),
            "survivor": (DIES, dying, 0),
            "killed": (DIES, dying, 1),
        }
        processes = [
            workers.start(program, tf_config=workers.tf_config(cluster, rank), TFDP_START_TIMEOUT=seconds)
            for program, cluster, rank in places.values()
            for seconds in ["6" if program == JOIN else "60"]
        ]
        ended = workers.finish(processes, deadline_seconds=90.0, grace_seconds=90.0)
    return {
        name: (process, cluster[rank], cluster[1 - rank])
        for (name, (_, cluster, rank)), process in zip(places.items(), ended, strict=True)
    }


@pytest.mark.parametrize("name", ["chief", "worker", "chief on a busy port", "worker of a busy chief"])
def test_a_worker_that_cannot_join_ends_and_names_both_addresses(broken_clusters, name):
    worker, own_address, missing_address = broken_clusters[name]
    assert worker.status not in (None, 0), workers.report([worker])
    assert "has joined" not in worker.output
    message = next(line for line in worker.output.splitlines() if "tfdp: worker" in line)
    assert own_address in message
    assert missing_address in message


@pytest.mark.parametrize("name", ["chief", "worker", "worker of a busy chief"])
def test_a_worker_whose_peer_does_not_come_says_how_long_it_waited(broken_clusters, name):
    worker, _, missing_address = broken_clusters[name]
    assert re.search(f"waited 6 s for the other workers.*not all came: worker . [(]{missing_address}[)]", worker.output)
    assert "Set TFDP_START_TIMEOUT, in seconds, to wait longer." in worker.output


def test_a_worker_whose_port_is_taken_says_so(broken_clusters):
    worker, own_address, _ = broken_clusters["chief on a busy port"]
    assert f"Check that the port of {own_address} is free" in worker.output
    assert "a second worker with the same index" in worker.output


def test_a_worker_that_is_killed_ends_the_other_with_an_exception(broken_clusters):
    survivor, killed = (broken_clusters[name][0] for name in ("survivor", "killed"))
    assert killed.status == -9, workers.report([survivor, killed])
    assert survivor.status is not None and survivor.status > 0, workers.report([survivor, killed])
    assert "step 2 done" in survivor.output  # The other may die while this one still receives what step 3 gave.
    assert "Traceback (most recent call last)" in survivor.output
    assert "\ntrained" not in survivor.output


# A strategy without a cluster, and a cluster that comes too late

TOO_LATE = """
import json, os
import numpy as np
import tfdp, trainings

def attempt(name, function):
    try:
        result = function()
    except RuntimeError as error:
        print(f"<{name}>{error}</{name}>")
    else:
        print(f"<{name}>{result}</{name}>")

strategy = tfdp.MultiWorkerMirroredStrategy()
print(f"<replicas>{strategy.num_replicas_in_sync}</replicas>")
received = trainings.as_arrays(trainings.sgd_with_momentum(strategy))
attempt("alone", lambda: trainings.assert_equals_one_device("sgd_with_momentum", received))
model = trainings.compiled(strategy)

os.environ["TF_CONFIG"] = json.dumps({
    "cluster": {"worker": ["127.0.0.1:2221", "127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}
})
attempt("scope", strategy.scope)
attempt("fit", lambda: trainings.fit(model, *trainings.regression()))
attempt("later", tfdp.MultiWorkerMirroredStrategy)
"""


@pytest.fixture(scope="module")
def too_late():
    """How a process ended that got its TF_CONFIG after it had made a strategy, and TensorFlow had started."""
    return workers.finish([workers.start(TOO_LATE)], deadline_seconds=90.0)


def outcome_of(ended, name):
    assert ended[0].status == 0, workers.report(ended)
    return re.search(f"<{name}>(.*)</{name}>", ended[0].output, re.DOTALL).group(1)


def test_without_a_cluster_one_worker_trains_and_says_so(too_late):
    assert outcome_of(too_late, "alone") == "None"
    assert outcome_of(too_late, "replicas") == "1"
    assert "no cluster in TF_CONFIG; training with this one worker" in too_late[0].output
    assert "`tfdp run -n 2 train.py` starts two" in too_late[0].output


@pytest.mark.parametrize("name", ["scope", "fit"])
def test_a_tf_config_that_comes_after_the_strategy_is_no_silent_training_alone(too_late, name):
    message = outcome_of(too_late, name)
    assert "TF_CONFIG has changed since this strategy was made, which trains with 1 replica(s)" in message
    assert "Set TF_CONFIG before the strategy is made" in message


def test_a_strategy_made_after_tensorflow_has_started_is_refused_with_advice(too_late):
    message = outcome_of(too_late, "later")
    assert "must be made before TensorFlow starts, and it has started already" in message
    assert "Make the strategy first in the program" in message


def cluster_of_one(monkeypatch, **task):
    (address,) = workers.free_addresses(1)
    cluster = {"cluster": {"chief": [address]}, "task": {"type": "chief", "index": 0, **task}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))


def test_a_cluster_of_one_trains_as_one_device(monkeypatch):
    cluster_of_one(monkeypatch)
    strategy = tfdp.MultiWorkerMirroredStrategy(compression="bf16")
    assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    received = trainings.TRAININGS["embedding"].function(strategy)
    trainings.assert_equals_one_device("embedding", trainings.as_arrays(received))


def test_a_resolver_is_used_instead_of_tf_config(monkeypatch):
    cluster_of_one(monkeypatch, index=7)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": workers.free_addresses(1)}), task_type="worker", task_id=0
    )
    assert tfdp.MultiWorkerMirroredStrategy(resolver).num_replicas_in_sync == 1
    with pytest.raises(ValueError, match="index 7"):
        tfdp.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), "soon"])
def test_a_wrong_start_timeout_is_refused(monkeypatch, seconds):
    cluster_of_one(monkeypatch)
    with pytest.raises(ValueError, match="`start_timeout_seconds` must be a positive number of seconds"):
        tfdp.MultiWorkerMirroredStrategy(start_timeout_seconds=seconds)
    monkeypatch.setenv("TFDP_START_TIMEOUT", str(seconds))
    with pytest.raises(ValueError, match="`TFDP_START_TIMEOUT` must be a positive number of seconds"):
        tfdp.MultiWorkerMirroredStrategy()


@pytest.mark.parametrize("cluster", [False, True])
@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["/cpu:7"], "`devices` must name devices of this process"),
        (["/cpu:0", "/cpu:0"], "`devices` must not name a device twice"),
        ([], "`devices` must name at least one device"),
    ],
)
def test_wrong_devices_are_refused(monkeypatch, cluster, devices, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if cluster:
        cluster_of_one(monkeypatch)
    with pytest.raises(ValueError) as raised:
        tfdp.MultiWorkerMirroredStrategy(devices=devices)
    assert message in str(raised.value)


# Time limits within a step

LATE_WORKER = """
import os, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfdp

limit = tf.distribute.experimental.CommunicationOptions(timeout_seconds=4)
strategy = tfdp.MultiWorkerMirroredStrategy(communication_options=limit)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class Late(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and strategy.cluster_resolver.task_id == 1:
            time.sleep(60)


def fit(*callbacks):
    rows = np.ones((320, 4), "float32")
    model.fit(rows, rows[:, :1], batch_size=32, epochs=10, shuffle=False, verbose=0, callbacks=list(callbacks))
    return len(os.listdir("/proc/self/task"))


print("threads", fit(), fit(), flush=True)
began = time.monotonic()
try:
    fit(Late())
except tf.errors.OpError as error:
    print("raised", type(error).__name__, "within 20 s" if time.monotonic() - began < 20 else "too late", flush=True)
    os._exit(3)
"""


@pytest.fixture(scope="module")
def late():
    """How the workers ended of which the second comes late to a step."""
    return workers.finish(workers.start_cluster(LATE_WORKER), deadline_seconds=60.0, grace_seconds=5.0)


def test_a_worker_that_waits_too_long_within_a_step_says_for_whom(late):
    assert late[0].status == 3, late[0].output
    assert "raised DeadlineExceededError within 20 s" in late[0].output
    assert re.search(r"worker 0 \(\S+\) has waited 4 s in one call of TensorFlow, .*: worker 1 \(", late[0].output)


def test_collectives_leave_no_threads_behind(late):
    """TensorFlow's pools may still grow by some dozens in the second training, whose 100 steps would leave 200."""
    for worker in late:
        before, after = map(int, re.search(r"threads (\d+) (\d+)", worker.output).groups())
        assert after - before < 100, "TensorFlow's time limit of a collective keeps threads: use tfdp's own"
