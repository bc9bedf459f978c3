"""An interrupted training goes on, bit for bit, with Keras's backup of the model and that of compression beside it."""

import logging
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
import trainings
from integration import workers

import tfdp
from tfdp.callbacks import CompressionStateBackup
from tfdp.callbacks.compression_parts import all_agree
from tfdp.callbacks.saving import iteration_of

# In a process of its own, with 2 logical CPUs. Batches are 5 an epoch.
PROGRAM = """
import functools, logging, pathlib, shutil, sys
import keras, numpy as np
import tensorflow as tf
import tfdp, trainings
from tfdp.callbacks import CompressionStateBackup

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
folder = pathlib.Path(sys.argv[1])
x, y = trainings.regression(num_columns=32)

class Interrupted(Exception):
    pass

class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        self.when = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.when:
            raise Interrupted

    def on_epoch_end(self, epoch, logs=None):
        self.on_train_batch_end("end")

class Look(keras.callbacks.Callback):
    # Notes, at the begin and the end of each epoch, the files and how much is remembered.
    def __init__(self, name, strategy):
        self.folder, self.strategy = folder / name / "state", strategy
        self.files, self.sums = [], []

    def on_epoch_begin(self, epoch, logs=None):
        parts = self.strategy.compression_state.parts()
        leaves = [leaf for part in parts for leaves in part.states.values() for leaf in leaves]
        self.sums.append(sum(float(np.abs(leaf).sum()) for leaf in leaves))

    def on_epoch_end(self, epoch, logs=None):
        self.files.append(" ".join(sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*.npz*"))))

class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("tfdp").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())

messages = Messages()

def make(compression="sign"):
    strategy = tfdp.MirroredStrategy(compression=compression)
    return strategy, trainings.compiled(strategy, lambda: trainings.mlp(num_columns=32, hidden=64))

def callbacks(name, ours_first=False, **options):
    both = [
        keras.callbacks.BackupAndRestore(folder / name / "model", **options),
        CompressionStateBackup(folder / name / "state", **options),
    ]
    return both[::-1] if ours_first else both

def fit(model, callbacks):
    trainings.fit(model, x, y, epochs=4, callbacks=callbacks)
    return trainings.flat(model.weights)

def interrupt(model, callbacks, epoch=2, batch=1):
    try:
        fit(model, [callbacks[0], Interrupt(epoch, batch), callbacks[1]])
    except Interrupted:
        return
    raise AssertionError("was not interrupted")

def uninterrupted():
    strategy, model = make()
    look = Look("uninterrupted", strategy)
    weights = fit(model, [*callbacks("uninterrupted"), look])
    left = [path.name for path in (folder / "uninterrupted").rglob("*")]
    return {"weights": weights, "files": look.files, "left": left}

def in_a_new_strategy():
    _, model = make()
    interrupt(model, callbacks("new"))
    shutil.copytree(folder / "new", folder / "of sign")
    shutil.copytree(folder / "new", folder / "broken")
    _, model = make()
    messages.texts.clear()
    weights = fit(model, callbacks("new", ours_first=True))
    return {"weights": weights, "messages": messages.texts}

def in_the_same_strategy():
    # What is there, of a later step, gives way to what was saved. The model's backup is older than ours.
    strategy, model = make()
    interrupt(model, callbacks("same", ours_first=True), batch="end")
    messages.texts.clear()
    look = Look("same", strategy)
    arrays = {"weights": fit(model, [*callbacks("same", ours_first=True), look])}
    arrays |= {"messages": list(messages.texts), "files": look.files}

    # Then from a broken file, and from none.
    for name, break_it in (
        ("broken", lambda state: (state / "10/part-1-of-2.npz").write_bytes(b"broken")),
        ("of sign", shutil.rmtree),
    ):
        again = folder / f"{name} now"
        shutil.copytree(folder / name, again)
        break_it(again / "state")
        messages.texts.clear()
        look = Look(again.name, strategy)
        fit(model, [*callbacks(again.name), look])
        arrays |= {f"{name} messages": list(messages.texts), f"{name} sums": look.sums, f"{name} files": look.files}
    return arrays

def of_another_compression():
    strategy, model = make("int8")
    try:
        fit(model, callbacks("of sign"))
    except ValueError as error:
        return {"message": str(error)}

def by_batches():
    strategy, model = make()
    look = Look("batches", strategy)
    options = dict(save_freq=3, delete_checkpoint=False)
    fit(model, [*callbacks("batches", **options), look])
    kept = {"files": look.files, "left": sorted(path.name for path in (folder / "batches/state").iterdir())}

    # A training on, without a backup: what it remembers is left as it is.
    messages.texts.clear()
    look = Look("batches", strategy)
    fit(model, [CompressionStateBackup(folder / "batches/state"), look])
    return {**kept, "sums": look.sums, "messages": messages.texts}

def without_state():
    strategy, model = make("bf16")
    interrupt(model, callbacks("bf16"), epoch=1)
    fit(model, callbacks("bf16", delete_checkpoint=False))
    return {"folders": [path.name for path in (folder / "bf16").iterdir()], "messages": messages.texts}

for function in (
    uninterrupted, in_a_new_strategy, in_the_same_strategy, of_another_compression, by_batches, without_state
):
    messages.texts.clear()
    trainings.record(folder, function.__name__, function)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what the functions of the program returned."""
    folder = tmp_path_factory.mktemp("backup")
    (ended,) = workers.finish([workers.start(PROGRAM, folder)], deadline_seconds=150.0)
    assert ended.status == 0, workers.report([ended])
    return folder


@pytest.mark.parametrize("way", ["in_a_new_strategy", "in_the_same_strategy"])
def test_an_interrupted_training_goes_on_bit_for_bit(results, way):
    expected = trainings.recorded(results, "uninterrupted")["weights"]
    arrays = trainings.recorded(results, way)
    assert arrays["weights"].tobytes() == expected.tobytes()
    assert arrays["messages"].tolist() == []


def test_what_is_newer_than_the_models_backup_is_written_anew(results):
    files = trainings.recorded(results, "in_the_same_strategy")["files"]
    assert files.tolist() == [parts_of(10, 15), parts_of(15, 20)]


def parts_of(*iterations):
    return " ".join(sorted(f"{iteration}/part-{rank}-of-2.npz" for iteration in iterations for rank in range(2)))


def test_the_parts_of_the_last_two_backups_are_kept_until_the_end(results):
    arrays = trainings.recorded(results, "uninterrupted")
    assert arrays["files"].tolist() == [parts_of(5), parts_of(5, 10), parts_of(10, 15), parts_of(15, 20)]
    assert arrays["left"].tolist() == []


def test_parts_are_saved_every_so_many_batches_and_stay_where_that_is_asked_for(results):
    arrays = trainings.recorded(results, "by_batches")
    assert arrays["files"].tolist() == [parts_of(3), parts_of(6, 9), parts_of(12, 15), parts_of(15, 18)]
    assert arrays["left"].tolist() == ["15", "18"]


@pytest.mark.parametrize(
    ("name", "reason"), [("broken", "part-1-of-2.npz cannot be read: These bytes are no"), ("of sign", "there is none")]
)
def test_compression_starts_anew_with_a_warning_where_parts_are_broken_or_missing(results, name, reason):
    arrays = trainings.recorded(results, "in_the_same_strategy")
    (message,) = arrays[f"{name} messages"].tolist()
    assert "cannot restore what compression remembered at iteration 10 of the model" in message
    assert reason in message
    assert "Compression starts anew" in message
    first, second = arrays[f"{name} sums"].tolist()
    assert first == 0
    assert second > 0
    assert arrays[f"{name} files"].tolist() == [parts_of(15), parts_of(15, 20)]


def test_a_training_that_goes_on_in_the_same_process_keeps_what_it_remembers(results):
    arrays = trainings.recorded(results, "by_batches")
    assert np.all(arrays["sums"] > 0)
    assert arrays["messages"].tolist() == []


def test_parts_of_another_compression_are_refused(results):
    message = str(trainings.recorded(results, "of_another_compression")["message"])
    assert "Train on with the same compression, or leave the state out." in message


def test_compression_that_remembers_nothing_has_no_parts(results):
    arrays = trainings.recorded(results, "without_state")
    assert arrays["folders"].tolist() == ["model"]
    assert arrays["messages"].tolist() == []


# In this process, with its one device


@pytest.mark.parametrize("make_strategy", [lambda: None, lambda: tfdp.MirroredStrategy(compression="int8")])
def test_on_one_device_nothing_is_saved(tmp_path, caplog, make_strategy):
    x, y = trainings.regression(num_columns=32)
    model = trainings.compiled(make_strategy(), lambda: trainings.mlp(num_columns=32, hidden=64))
    folder = tmp_path / "state"
    for save_freq in ("epoch", 2):
        with caplog.at_level(logging.INFO, "tfdp"):
            trainings.fit(model, x, y, epochs=1, callbacks=[CompressionStateBackup(folder, save_freq=save_freq)])
    assert not folder.exists()
    assert not [record for record in caplog.records if record.name == "tfdp"]


def test_a_loss_that_is_scaled_counts_its_steps_as_any_other(tmp_path):
    x, y = trainings.regression(num_columns=32)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01))
    model = trainings.compiled(None, lambda: trainings.mlp(num_columns=32), lambda: optimizer)
    trainings.fit(model, x, y, epochs=1)
    assert iteration_of(model) == 5


class Gathering:
    """Stands for a strategy of two workers of one replica each, of which the other says `theirs`."""

    num_replicas_in_sync = 2
    extended = types.SimpleNamespace(worker_devices=["/cpu:0"])

    def __init__(self, theirs):
        self.theirs = theirs

    def experimental_distribute_values_from_function(self, function):
        return function(None)

    def gather(self, value, axis):
        return tf.concat([value, tf.constant([self.theirs], tf.int64)], axis)


@pytest.mark.parametrize(("theirs", "expected"), [((10, 2), True), ((10, 0), False), ((10, 3), False)])
def test_workers_restore_only_what_all_of_them_have_found(theirs, expected):
    assert all_agree(Gathering(theirs), 10, 2) is expected
    assert not all_agree(Gathering(theirs), 10, 0)


def test_workers_whose_models_are_of_different_times_are_refused():
    with pytest.raises(ValueError, match=r"different iterations of the model.* Received: iterations \[10, 15\]"):
        all_agree(Gathering((15, 2)), 10, 2)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"backup_dir": ""}, ValueError, "`backup_dir` must be the path of a folder of a file system. Received: ''."),
        ({"backup_dir": "gs://bucket/state"}, ValueError, "Received: 'gs://bucket/state'."),
        ({"backup_dir": None}, TypeError, "`backup_dir` must be the path of a folder. Received: None."),
        ({"save_freq": "batch"}, TypeError, "`save_freq` must be 'epoch' or a number of batches. Received: save_freq="),
        ({"save_freq": 1.5}, TypeError, "Received: save_freq=1.5."),
        ({"save_freq": False}, TypeError, "Received: save_freq=False."),
        ({"save_freq": 0}, ValueError, "`save_freq` must be 'epoch' or at least 1. Received: save_freq=0."),
        ({"delete_checkpoint": "no"}, TypeError, "`delete_checkpoint` must be True or False. Received: 'no'."),
    ],
)
def test_a_wrong_argument_is_refused(options, kind, message):
    with pytest.raises(kind) as raised:
        CompressionStateBackup(**{"backup_dir": "state", **options})
    assert message in str(raised.value)


def test_options_after_the_folder_are_keywords():
    with pytest.raises(TypeError):
        CompressionStateBackup("state", "epoch")
