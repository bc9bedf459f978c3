"""What compression remembers is saved and restored: training goes on bit for bit, and nothing unsent is lost."""

import io

import numpy as np
import pytest
import tensorflow as tf
import trainings
from integration import workers

from tfdp import compression
from tfdp.compression_state import CompressionState, Part, Slot, deserialized, serialized

COMPRESSIONS = ("int8", "sign", "qsgd")

# In a process of its own, with 4 logical CPUs

TRAIN = """
import functools, pathlib, sys
import keras, numpy as np
import tensorflow as tf
import tfdp, trainings

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
folder = pathlib.Path(sys.argv[1])
x, y = trainings.regression(num_columns=32)

compressor = functools.cache(tfdp.compression.get)  # one of each: it compiles once, and remembers nothing itself

def make(compression, num_devices=2):
    strategy = tfdp.MirroredStrategy(
        [f"/cpu:{i}" for i in range(num_devices)], compression=compressor(compression)
    )
    model = trainings.compiled(strategy, lambda: trainings.mlp(num_columns=32, hidden=64))
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)
    return strategy, model

def checkpoint(strategy, model):
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer, strategy_state=strategy.compression_state)

def summed(strategy):
    # The sum over the replicas of all that they remember.
    parts = strategy.compression_state.parts()
    leaves = [[leaf for leaves in part.states.values() for leaf in leaves] for part in parts]
    return np.concatenate([np.ravel(sum(of_replicas)) for of_replicas in zip(*leaves, strict=True)])

def interrupted(compression):
    # Trains three epochs in one go, and from checkpoints of the second.
    path = str(folder / compression)

    def save(epoch, logs):
        if epoch == 1:
            checkpoint(strategy, model).write(path)

    def last_epoch(model):
        trainings.fit(model, x, y, epochs=1)
        return trainings.flat(model.weights)

    strategy, model = make(compression)
    trainings.fit(model, x, y, epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=save)])
    arrays = {"in one go": trainings.flat(model.weights)}

    strategy, model = make(compression)
    checkpoint(strategy, model).read(path).expect_partial()
    arrays["restored before training"] = last_epoch(model)

    strategy, model = make(compression)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).read(path).expect_partial()
    arrays["restored without the state"] = last_epoch(model)
    checkpoint(strategy, model).read(path).expect_partial()
    arrays["restored after training"] = last_epoch(model)
    return arrays

def between_layouts():
    # Restores the state of 2 replicas on 4, and that of 4 on 2.
    arrays = {}
    trained = {size: make("sign", size) for size in (2, 4)}
    for strategy, model in trained.values():
        trainings.fit(model, x, y, epochs=2)
    saved = {size: strategy.compression_state.serialize() for size, (strategy, _) in trained.items()}
    before = {size: summed(strategy) for size, (strategy, _) in trained.items()}
    for size, (strategy, model) in trained.items():
        strategy.compression_state.deserialize(saved[6 - size])
        arrays[f"before on {6 - size}"] = before[6 - size]
        arrays[f"after on {size}"] = summed(strategy)
        arrays[f"loss on {size}"] = trainings.fit(model, x, y, epochs=2).history["loss"]
    return arrays

def other_compression():
    strategy, model = make("int8")
    try:
        checkpoint(*make("sign")).read(str(folder / "int8"))
    except ValueError as error:
        return {"message": str(error)}

def files():
    # Saves a model that was trained under compression, in all formats.
    strategy, model = make("int8")
    trainings.fit(model, x, y, epochs=1)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    model.export(folder / "exported", verbose=False)
    tf.saved_model.save(model, str(folder / "saved"))
    return {"x": x[:8], "predicted": model.predict(x[:8], verbose=0)}

for name in ("int8", "sign", "qsgd"):
    trainings.record(folder, f"interrupted {name}", functools.partial(interrupted, name))
trainings.record(folder, "between layouts", between_layouts)
trainings.record(folder, "other compression", other_compression)
trainings.record(folder, "files", files)
"""
LOAD = """
import pathlib, sys
sys.modules["tfdp"] = None  # an import of it raises
import keras, numpy as np
import tensorflow as tf

folder = pathlib.Path(sys.argv[1])
x = np.load(folder / "files.npz")["x"]
model = keras.models.load_model(folder / "model.keras")
arrays = {"model.keras": model.predict(x, verbose=0)}
for weight in model.weights:
    weight.assign(keras.ops.zeros_like(weight))
model.load_weights(folder / "model.weights.h5")
arrays["model.weights.h5"] = model.predict(x, verbose=0)
exported, saved = (tf.saved_model.load(str(folder / name)) for name in ("exported", "saved"))
arrays["exported"] = exported.serve(x)
(arrays["saved"],) = saved.signatures["serving_default"](tf.constant(x)).values()
np.savez(folder / "loaded.npz", **arrays)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what the trainings returned."""
    folder = tmp_path_factory.mktemp("compression state")
    for program in (TRAIN, LOAD):
        (ended,) = workers.finish([workers.start(program, folder)], deadline_seconds=150.0)
        assert ended.status == 0, workers.report([ended])
    return folder


@pytest.mark.parametrize("name", COMPRESSIONS)
@pytest.mark.parametrize("way", ["restored before training", "restored after training"])
def test_training_goes_on_from_a_checkpoint_bit_for_bit(results, name, way):
    arrays = trainings.recorded(results, f"interrupted {name}")
    assert arrays[way].tobytes() == arrays["in one go"].tobytes()


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_training_goes_on_otherwise_without_what_compression_remembers(results, name):
    arrays = trainings.recorded(results, f"interrupted {name}")
    assert np.any(arrays["restored without the state"] != arrays["in one go"])


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_what_was_not_sent_is_kept_on_another_number_of_replicas(results, before, after):
    arrays = trainings.recorded(results, "between layouts")
    expected = arrays[f"before on {before}"]
    assert np.max(np.abs(expected)) > 0
    np.testing.assert_allclose(arrays[f"after on {after}"], expected, rtol=1e-5, atol=1e-7)
    assert arrays[f"loss on {after}"][-1] < 0.5


def test_the_state_of_another_compression_is_refused_with_both_names(results):
    message = str(trainings.recorded(results, "other compression")["message"])
    assert "The saved state of compression is of compression=by_size(by_shape(error_feedback(int8(" in message
    assert "this strategy has compression=by_size(by_shape(error_feedback(sign(" in message
    assert "Train on with the same compression, or leave the state out." in message


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "exported", "saved"])
def test_models_trained_under_compression_load_where_there_is_no_tfdp(results, name):
    expected = trainings.recorded(results, "files")["predicted"]
    np.testing.assert_allclose(trainings.recorded(results, "loaded")[name], expected, rtol=1e-5, atol=1e-6)


# In this process

SPEC = tf.TensorSpec([2, 3], tf.float32, name="dense/kernel")
SLOT = Slot(0, 0, "dense/kernel")
FEEDBACK = compression.error_feedback(compression.int8())


def state_of(num_members, ranks=None, compressor=FEEDBACK):
    return CompressionState(range(num_members) if ranks is None else ranks, num_members, compressor)


def residuals(state, slot=SLOT):
    """Returns the residuals of the replicas of this process, [replicas, 2, 3]; makes the variables."""
    for local_id in range(len(state.ranks)):
        state.variables(slot, local_id, FEEDBACK, SPEC, "/cpu:0")
    return np.array([part.states[slot][0] for part in state.parts()])


def filled(num_members):
    """Returns the state of a group whose residuals are all different."""
    state = state_of(num_members)
    residuals(state)
    for rank in range(num_members):
        state.variables(SLOT, rank, FEEDBACK, SPEC, "/cpu:0")["residual"].assign(
            np.arange(6, dtype="float32").reshape(2, 3) + 10 * rank
        )
    return state


@pytest.mark.parametrize("made_before", [False, True])
def test_members_restore_their_own_parts(made_before):
    saved = filled(3)
    restored = state_of(3, ranks=[1, 2])
    if made_before:
        residuals(restored)
    restored.restore(saved.parts())
    np.testing.assert_array_equal(residuals(restored), residuals(saved)[1:])


@pytest.mark.parametrize("made_before", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 2), (2, 1)])
def test_another_number_of_members_shares_the_residuals_out(before, after, made_before):
    saved, restored = filled(before), state_of(after)
    if made_before:
        residuals(restored)
    restored.restore(saved.parts())
    received = residuals(restored)
    np.testing.assert_allclose(received.sum(axis=0), residuals(saved).sum(axis=0), rtol=1e-6)
    assert all(np.array_equal(one, received[0]) for one in received)


def test_a_variable_of_another_name_is_found_by_its_position():
    saved, restored = filled(2), state_of(2)
    restored.restore(saved.parts())
    np.testing.assert_array_equal(residuals(restored, Slot(0, 0, "dense_1/kernel")), residuals(saved))


@pytest.mark.parametrize("slot", [Slot(0, 1, "other/kernel")])
def test_a_variable_that_was_not_saved_starts_anew_with_a_warning(slot, caplog):
    restored = state_of(2)
    restored.restore(filled(2).parts())
    assert not residuals(restored, slot).any()
    assert f"the saved compression state has nothing for {slot.path}, which starts anew" in caplog.text


def test_restoring_nothing_starts_anew():
    state = filled(2)
    state.restore([])
    assert not residuals(state).any()


def test_only_what_compression_keeps_is_remembered():
    kernel, small = tf.TensorSpec([32, 32], tf.float32), tf.TensorSpec([2], tf.float32)
    assert state_of(2, compressor=compression.get("int8")).remembers([small, kernel])
    assert not state_of(2, compressor=compression.get("int8")).remembers([small])
    assert not state_of(2, compressor=compression.get("bf16")).remembers([kernel])
    assert not state_of(1, compressor=compression.get("int8")).remembers([kernel])


def test_parts_survive_the_way_through_bytes():
    arrays = [
        np.float32([[1.5, -0.0], [np.nan, np.inf]]),
        tf.constant([1.0, 2.5], tf.bfloat16).numpy(),
        np.int32(7),
        np.array(3.5, "float64"),
        np.zeros([0, 4], "float16"),
        np.array([True, False]),
        np.asfortranarray(np.arange(6, dtype="int64").reshape(2, 3)),
    ]
    parts = [
        Part(0, 2, "int8()", {Slot(0, 0, "a/kernel"): arrays, Slot(0, 1, "ä/kernel"): []}),
        Part(1, 2, "int8()", {}),
    ]
    received = deserialized(serialized(parts))
    assert [part._replace(states=list(part.states)) for part in received] == [
        part._replace(states=list(part.states)) for part in parts
    ]
    for one, other in zip(received[0].states[Slot(0, 0, "a/kernel")], arrays, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def test_broken_bytes_are_refused_or_harmless():
    content = serialized(filled(2).parts())
    generator = np.random.default_rng(0)
    broken = [content[:length] for length in range(0, len(content), 7)]
    for _ in range(500):
        changed = bytearray(content)
        changed[generator.integers(len(content))] ^= 1 << generator.integers(8)
        broken.append(bytes(changed))
    num_refused = 0
    for one in broken:
        try:
            parts = deserialized(one)
        except ValueError as error:
            num_refused += 1
            assert "These bytes are no saved compression state" in str(error)
        else:
            assert serialized(parts) == content
    assert num_refused > len(broken) / 2


def test_what_is_no_state_is_refused():
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for content in (b"", b"no archive", b"\x93NUMPY", b"PK\x03\x04", array.getvalue()):
        with pytest.raises(ValueError, match="These bytes are no saved compression state"):
            deserialized(content)


def test_a_later_format_is_refused(monkeypatch):
    monkeypatch.setattr("tfdp.compression_state._FORMAT", 2)
    content = serialized([])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 2, this version of tfdp reads 1"):
        deserialized(content)
