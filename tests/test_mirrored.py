"""MirroredStrategy on the logical CPUs of one process gives what one device gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import trainings
from integration import workers

import tfdp

# TensorFlow fixes the number of logical devices when it starts: processes of their own run all that needs several.
START = """
import functools, pathlib, sys
import tensorflow as tf
import tfdp, together, trainings

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
folder = pathlib.Path(sys.argv[1])
"""
# Strategies of 2, 4 and 2 devices follow each other.
ON_TWO_DEVICES = """
make_strategy = functools.partial(tfdp.MirroredStrategy, ["/cpu:0", "/cpu:1"])
trainings.record_all(folder / "2 devices", make_strategy())
trainings.record_compression(folder / "2 devices", make_strategy)
for function in (together.masks, together.unseeded,
    trainings.unsynchronized_batch_normalization, trainings.refusal_of_jit_compile, trainings.sums_of_two_dtypes,
    trainings.refusals_of_what_was_created_outside
):
    trainings.record(folder / "2 devices", function.__name__, functools.partial(function, make_strategy()))
for name, strategy in (
    ("4 in small buckets", tfdp.MirroredStrategy(bucket_bytes=64)),
    (
        "4 as 2 hosts in small buckets",
        tfdp.MirroredStrategy(bucket_bytes=64, topology=tfdp.Topology.from_hosts(["a", "a", "b", "b"])),
    ),
    ("2 others in small buckets", tfdp.MirroredStrategy(["/cpu:2", "/cpu:3"], bucket_bytes=64)),
):
    trainings.record_all(folder / name, strategy, trainings.IN_SMALL_BUCKETS)
"""
ON_FOUR_DEVICES = """
strategy = tfdp.MirroredStrategy()
assert strategy.num_replicas_in_sync == 4
trainings.record_all(folder / "4 devices", strategy, trainings.ON_FOUR_REPLICAS)
"""
UNDER_COMPRESSORS = """
trainings.record_under_compressors(
    folder / "compressed", functools.partial(tfdp.MirroredStrategy, ["/cpu:0", "/cpu:1"])
)
"""
LAYOUTS = {"2 devices": tuple(trainings.TRAININGS), "4 devices": trainings.ON_FOUR_REPLICAS}
IN_SMALL_BUCKETS = ("4 in small buckets", "4 as 2 hosts in small buckets", "2 others in small buckets")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what the trainings returned, by layout."""
    folder = tmp_path_factory.mktemp("mirrored")
    for layout in (*LAYOUTS, *IN_SMALL_BUCKETS, "compressed"):
        (folder / layout).mkdir()
    programs = (ON_TWO_DEVICES, ON_FOUR_DEVICES, UNDER_COMPRESSORS)
    processes = [workers.start(START + program, folder) for program in programs]
    ended = workers.finish(processes, deadline_seconds=400.0)
    if any(process.status != 0 for process in ended):
        (folder / "how it ended").write_text(workers.report(ended))
    return folder


def test_each_replica_draws_random_numbers_of_its_own_and_the_same_in_each_run(results):
    drawn = trainings.recorded(results / "2 devices", "masks")
    assert (drawn["masks"][0] != drawn["masks"][1]).any()
    assert (drawn["masks"] != drawn["masks_of_next_step"]).any()
    np.testing.assert_array_equal(drawn["masks"], drawn["masks_again"])
    numbers = trainings.recorded(results / "2 devices", "unseeded")["numbers"]
    assert (numbers[0] != numbers[1]).all()


def test_all_trainings_ran_to_their_end(results):
    ended = results / "how it ended"
    assert not ended.exists(), ended.read_text()


@pytest.mark.parametrize(("layout", "name"), [(layout, name) for layout, names in LAYOUTS.items() for name in names])
def test_a_training_on_several_devices_equals_one_device(results, layout, name):
    trainings.assert_equals_one_device(name, trainings.recorded(results / layout, name))


@pytest.mark.parametrize("layout", IN_SMALL_BUCKETS)
@pytest.mark.parametrize("name", trainings.IN_SMALL_BUCKETS)
def test_a_later_strategy_of_other_devices_and_small_buckets_equals_one_device(results, layout, name):
    trainings.assert_equals_one_device(name, trainings.recorded(results / layout, name))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_computed_by_hand_come_out(results, layout):
    trainings.assert_numbers_computed_by_hand(LAYOUTS[layout], lambda name: trainings.recorded(results / layout, name))


def test_unsynchronized_batch_normalization_keeps_the_mean_of_its_statistics_on_every_replica(results):
    arrays = trainings.recorded(results / "2 devices", "unsynchronized_batch_normalization")
    assert arrays["copies_that_differ"] == 0
    np.testing.assert_allclose([*arrays["mean"], *arrays["variance"]], [3.25, 1.75], rtol=2e-5)
    np.testing.assert_allclose(arrays["predicted"], arrays["predicted_with_the_same_weights"], rtol=1e-6)


def test_an_integer_and_a_float_in_one_reduction_keep_their_dtypes_and_digits(results):
    arrays = trainings.recorded(results / "2 devices", "sums_of_two_dtypes")
    assert (arrays["integers"].dtype, arrays["floats"].dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(arrays["integers"], [200006, 200006])
    np.testing.assert_array_equal(arrays["floats"], [[2.0], [2.0]])


def test_jit_compile_of_several_replicas_on_cpus_is_refused_with_advice(results):
    message = str(trainings.recorded(results / "2 devices", "refusal_of_jit_compile")["message"])
    assert "`jit_compile=True` does not work with several replicas on CPUs" in message
    assert "Compile the model with jit_compile='auto' or False." in message


def test_what_was_created_outside_the_scope_is_refused_by_name(results):
    messages = trainings.recorded(results / "2 devices", "refusals_of_what_was_created_outside")
    for what, name in (("layer", "/kernel"), ("metric", "mean_squared_error/total"), ("optimizer", "optimizer SGD")):
        assert "must be created, and the model be compiled, within `with strategy.scope():`" in str(messages[what])
        assert name in str(messages[what])


@pytest.mark.parametrize("size", [1, 7, 17, 33])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_have_the_number_and_the_order_of_the_rows(results, layout, size):
    received = trainings.recorded(results / layout, "predict_of_any_size")[f"{size}_rows"]
    expected = trainings.on_one_device("predict_of_any_size")["33_rows"][:size]
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", trainings.COMPRESSORS)
def test_compressed_training_is_near_one_device_and_equal_on_all_replicas(results, name):
    received = trainings.recorded(results / "compressed", f"compressed by {name}")
    trainings.assert_near_one_device(received, trainings.COMPRESSORS[name].band)
    trainings.assert_traffic(name, received)


@pytest.mark.parametrize(
    ("training_name", "name"),
    [(training_name, name) for name in trainings.COMPRESSORS for training_name in trainings.trained_under(name)],
)
def test_odd_variables_and_overflow_come_out_right_under_compression(results, training_name, name):
    trainings.assert_right_under_compression(
        lambda wanted: trainings.recorded(results / "compressed", wanted), name, training_name
    )


@pytest.mark.parametrize("name", trainings.LARGE_GRADIENTS)
def test_large_gradients_leave_all_weights_finite(results, name):
    arrays = trainings.recorded(results / "compressed", f"large gradients by {name}")
    assert np.all(np.isfinite(arrays["weights"]))
    assert arrays["copies_that_differ"] == 0


def test_every_gradient_goes_through_compression_once_on_each_replica(results):
    arrays = trainings.recorded(results / "2 devices", "recorded")
    assert set(arrays["times"]) == {2.0}
    assert arrays["others"] == 0


def test_losses_metrics_and_batch_statistics_never_go_through_compression(results):
    trainings.assert_only_gradients_were_dropped(trainings.recorded(results / "2 devices", "dropped"))


def test_sparse_gradients_never_go_through_compression(results):
    trainings.assert_sparse_gradients_were_exact(trainings.recorded(results / "2 devices", "dropped beside sparse"))


def test_a_compressor_of_the_users_own_trains(results):
    trainings.assert_near_one_device(trainings.recorded(results / "2 devices", "own compressor"))


def test_dgc_gives_momentum_to_an_optimizer_without(results):
    trainings.assert_momentum_was_added(trainings.recorded(results / "2 devices", "dgc"))


# In this process, with its one device


def refusal(kind, *arguments, **options):
    with pytest.raises(kind) as raised:
        tfdp.MirroredStrategy(*arguments, **options)
    return str(raised.value)


@pytest.mark.parametrize("device", ["/cpu:7", "/gpu:0", "CPU:9"])
def test_an_unknown_device_is_refused_with_those_that_there_are(device):
    message = refusal(ValueError, ["/cpu:0", device])
    assert "`devices` must name devices of this process: CPU:0" in message
    assert f"Received: {device!r}" in message


@pytest.mark.parametrize("devices", [["/cpu:0", "/cpu:0"], ["/cpu:0", "CPU:0"], ["/cpu:0", "/device:CPU:0"]])
def test_a_device_named_twice_is_refused(devices):
    message = refusal(ValueError, devices)
    assert f"`devices` must not name a device twice. Received: {devices}" in message


def test_no_device_is_refused():
    assert "`devices` must name at least one device, or be None for all. Received: []" in refusal(ValueError, [])


@pytest.mark.parametrize("devices", ["/cpu:0", [0], [None]])
def test_devices_that_are_no_list_of_names_are_refused(devices):
    assert "`devices` must be a list of names such as ['/gpu:0', '/gpu:1']" in refusal(TypeError, devices)


@pytest.mark.parametrize("strategy", [tfdp.MirroredStrategy, tfdp.MultiWorkerMirroredStrategy])
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"compression": "int3"}, ValueError, "`compression` must be one of 'none', 'bf16', 'fp16', 'e4m3'"),
        ({"compression": 8}, TypeError, "or a tfdp.compression.Compressor. Received: 8 of type int."),
        ({"bucket_bytes": 0}, ValueError, "`bucket_bytes` must be at least 1. Received: bucket_bytes=0."),
        ({"bucket_bytes": -5}, ValueError, "`bucket_bytes` must be at least 1"),
        ({"bucket_bytes": 1.5}, TypeError, "`bucket_bytes` must be an integer, in bytes. Received: 1.5."),
        ({"bucket_bytes": True}, TypeError, "`bucket_bytes` must be an integer"),
        ({"bucket_bytes": "1MB"}, TypeError, "`bucket_bytes` must be an integer"),
    ],
)
def test_a_wrong_option_is_refused(monkeypatch, strategy, options, kind, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(kind) as raised:
        strategy(**options)
    assert message in str(raised.value)


def test_options_after_the_devices_are_keywords():
    with pytest.raises(TypeError):
        tfdp.MirroredStrategy(["/cpu:0"], "bf16")


def test_strategies_are_those_that_keras_and_users_look_for():
    strategy = tfdp.MirroredStrategy(["/cpu:0"])
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 1


def test_the_report_says_that_one_replica_sends_nothing():
    report = tfdp.MirroredStrategy().compression_report()
    assert (report.uncompressed_wire_bytes, report.wire_bytes, report.state_bytes) == (0, 0, 0)
    assert str(report) == "One replica sends nothing."


def test_one_device_trains_as_without_a_strategy():
    name = "sgd_with_momentum"
    received = trainings.TRAININGS[name].function(tfdp.MirroredStrategy(compression="fp16"))
    trainings.assert_equals_one_device(name, trainings.as_arrays(received))


def test_reduce_takes_nests_and_scalars_whatever_the_axis():
    strategy = tfdp.MirroredStrategy()
    value = {"loss": tf.constant(3.0), "rows": (tf.constant([1.0, 2.0]), tf.constant(4))}
    reduced = strategy.reduce("SUM", value, axis=0)
    assert (float(reduced["loss"]), float(reduced["rows"][0]), int(reduced["rows"][1])) == (3.0, 3.0, 4)


def test_a_function_of_tf_keras_is_refused_by_run():
    def train_step():
        return keras.ops.ones(())

    train_step.__module__ = "tf_keras.src.engine.training"
    with pytest.raises(TypeError, match="tfdp trains Keras 3 models"):
        tfdp.MirroredStrategy().run(train_step)
