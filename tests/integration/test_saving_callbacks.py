"""Two workers save to one place, are killed, and go on as if nothing had happened; where one fails, both end."""

import shutil
import signal

import keras
import numpy as np
import pytest
import trainings
from integration import workers

# Batches are 7 an epoch. The model has all kinds of state, and a metric of its own that is summed when it is read.
START = """
import importlib.util, json, logging, os, pathlib, signal, sys, time
import keras, numpy as np
import tfdp, trainings
from tfdp.callbacks import BackupAndRestore, CSVLogger, ModelCheckpoint, TensorBoard
from tfdp.callbacks.habits import adapted

folder = pathlib.Path(sys.argv[1])
x, y = trainings.regression(49)

class Tracking(keras.Sequential):
    tracker = None

    def compile(self, *args, **kwargs):
        self.tracker = keras.metrics.Mean(name="tracker")
        super().compile(*args, **kwargs)

    def train_step(self, data):
        self.tracker.update_state(data[1])
        return super().train_step(data)

def normalized(kind=keras.Sequential):
    return kind([
        keras.Input((8,)), trainings.dense(512, 1), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3, seed=1), trainings.dense(1, 2),
    ])

def make(kind=Tracking, compression="int8"):
    strategy = tfdp.MultiWorkerMirroredStrategy(compression=compression)
    return strategy, trainings.compiled(strategy, lambda: normalized(kind), lambda: keras.optimizers.Adam(0.01))

def fit(strategy, model, callbacks=(), epochs=3):
    data = tfdp.data.shard((x, y), strategy=strategy, global_batch_size=8, shuffle_buffer=100, seed=3)
    model._tfdp_training_data = data
    model.fit(data, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return {"weights": trainings.flat([*model.weights, *model.optimizer.variables])}

class Look(keras.callbacks.Callback):
    # Notes how the training begins.
    begin = None

    def on_epoch_begin(self, epoch, logs=None):
        if self.begin is None:
            weights = trainings.flat([*self.model.weights, *self.model.optimizer.variables])
            self.begin = {"epoch": epoch, "begin": weights}

def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))

def message(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
"""
KILLED = (
    START
    + """
strategy, model = make()
rank = strategy.worker
trainings.record(folder, f"uninterrupted {rank}", lambda: fit(strategy, model))

class Die(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(model.optimizer.iterations.numpy()) == 11:
            (folder / f"at the end {rank}").touch()
            while not all((folder / f"at the end {other}").exists() for other in range(2)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

strategy, model = make()
fit(strategy, model, [BackupAndRestore(folder / "backup", save_freq=2, double_checkpoint=True), Die()])
"""
)
RESTARTED = (
    START
    + """
class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("tfdp").addHandler(self)
        logging.getLogger("tfdp").setLevel(logging.INFO)

    def emit(self, record):
        self.texts.append(record.getMessage())

messages = Messages()
strategy, model = make()
rank = strategy.worker

def restarted(backup):
    messages.texts.clear()
    callback, look = BackupAndRestore(backup, save_freq=2), Look()
    strategy, model = make()
    arrays = fit(strategy, model, [callback, look])
    return {**arrays, **look.begin, "messages": [text for text in messages.texts if "BackupAndRestore" in text]}

def in_one_folder():
    return restarted(folder / "shared")

def without_the_chiefs_folder():
    return restarted(folder / "of chief" if rank == 0 else folder / "of nobody")
"""
)
TWO = (
    RESTARTED
    + """
other_strategy, tracking = make(compression="none")

def by_habit():
    made = folder / "habit"
    checkpoint = keras.callbacks.ModelCheckpoint(
        made / "files" / "model.keras", monitor="loss", save_best_only=True, mode="min", verbose=1
    )
    callbacks = [
        checkpoint,
        keras.callbacks.BackupAndRestore(made / "backup"),
        keras.callbacks.CSVLogger(folder / "habit.csv"),
    ]
    messages.texts.clear()
    arrays = fit(other_strategy, tracking, adapted(callbacks, other_strategy))
    count = [sum("share are those of tfdp.callbacks now" in text for text in messages.texts)]
    return {**arrays, "best": checkpoint.best, "messages": count, "names": names(made)}

def whole_model():
    strategy, model = make(keras.Sequential, compression="none")
    callbacks = [
        ModelCheckpoint(folder / "whole" / "model.keras"),
        ModelCheckpoint(folder / "whole" / "{epoch}.weights.h5", save_weights_only=True, save_freq=3),
        CSVLogger(folder / "whole.csv"),
    ]
    return fit(strategy, model, callbacks, epochs=2)

def of_the_chief_alone():
    callbacks = [keras.callbacks.ModelCheckpoint(folder / "alone.weights.h5", save_weights_only=True, save_freq=3)]
    return fit(other_strategy, tracking, adapted(callbacks if rank == 0 else [], other_strategy), epochs=1)

def tensor_board():
    if importlib.util.find_spec("tensorboard") is None:
        return {}
    options = dict(histogram_freq=1, update_freq=1, profile_batch=2)
    ours = TensorBoard(folder / "of chief alone", **options)
    each = TensorBoard(folder / "of each", every_worker=True, **options)
    fit(other_strategy, tracking, [ours], epochs=1)
    return fit(other_strategy, tracking, [each], epochs=1)

def failures():
    (folder / "taken.keras").mkdir(exist_ok=True)
    (folder / "file").touch()
    taken, below = folder / "taken.keras", folder / "file" / "model.keras"
    if rank:
        below = folder / "whatever" / "model.keras"

    def failed(callback):
        return message(lambda: fit(other_strategy, tracking, [callback]))

    texts = [failed(ModelCheckpoint(str(path))) for path in (taken, below)]
    texts.append(failed(CSVLogger(folder / "no folder" / "log.csv")))

    # The chief cannot commit its second backup.
    rename = os.rename
    def fail(*paths):
        if any((folder / "failing").glob("backup-*[0-9]")):
            raise OSError(28, "No space left on device")
        rename(*paths)
    if rank == 0:
        os.rename = fail
    texts.append(failed(BackupAndRestore(folder / "failing", save_freq=2)))
    os.rename = rename
    left = names(folder / "failing") if rank == 0 else []
    return {"texts": texts, "left": left}

for function in (
    in_one_folder, without_the_chiefs_folder, by_habit, whole_model, of_the_chief_alone, tensor_board, failures
):
    trainings.record(folder, f"{function.__name__} {rank}", function)
"""
)
ALONE = (
    RESTARTED
    + """
trainings.record(folder, "alone", lambda: restarted(folder / "for one"))
"""
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what workers recorded once they were killed and started again."""
    folder = tmp_path_factory.mktemp("saving")
    ended = workers.finish(workers.start_cluster(KILLED, folder), deadline_seconds=120.0)
    assert [worker.status for worker in ended] == [-signal.SIGKILL] * 2, workers.report(ended)
    for name in ("shared", "of chief", "for one"):
        shutil.copytree(folder / "backup", folder / name)
    processes = [*workers.start_cluster(TWO, folder), workers.start(ALONE, folder)]
    ended = workers.finish(processes, deadline_seconds=150.0)
    assert [worker.status for worker in ended] == [0] * 3, workers.report(ended)
    (folder / "output 0").write_text(ended[0].output)
    (folder / "output 1").write_text(ended[1].output)
    return folder


def of_both(results, name):
    return [trainings.recorded(results, f"{name} {rank}") for rank in range(2)]


def equal(first, second):
    return first.tobytes() == second.tobytes()


def test_what_was_killed_left_the_last_two_backups_and_their_parts(results):
    found = sorted(path.name for path in (results / "backup").rglob("*.*") if path.is_file())
    parts = ["part-0-of-2.npz", "part-1-of-2.npz"]
    assert found == sorted(2 * ["model.weights.h5", "training.json", *parts])


def test_workers_that_were_killed_go_on_in_the_middle_of_the_epoch_bit_for_bit(results):
    expected = trainings.recorded(results, "uninterrupted 0")["weights"]
    for arrays in of_both(results, "in_one_folder"):
        assert arrays["messages"].tolist() == []
        assert arrays["epoch"] == 1
        assert equal(arrays["weights"], expected)
    assert not (results / "shared").exists()


def test_a_worker_without_files_gets_all_from_the_chief(results):
    expected = of_both(results, "in_one_folder")[0]
    received = of_both(results, "without_the_chiefs_folder")
    for arrays in received:
        assert arrays["epoch"] == 1
        assert equal(arrays["begin"], expected["begin"])
    (message,) = received[0]["messages"].tolist()  # which the other worker leaves to the chief
    assert "cannot restore what compression remembered" in message
    assert not (results / "of nobody").exists()


def test_one_worker_goes_on_from_the_backup_of_two(results):
    expected = of_both(results, "in_one_folder")[0]
    arrays = trainings.recorded(results, "alone")
    assert arrays["epoch"] == 1
    assert equal(arrays["begin"], expected["begin"])
    assert np.all(np.isfinite(arrays["weights"]))


def test_callbacks_of_keras_given_by_habit_write_one_file_each(results):
    first, second = of_both(results, "by_habit")
    assert equal(first["weights"], second["weights"])
    assert first["best"] == second["best"]
    assert first["messages"].tolist() == second["messages"].tolist() == [1]
    assert first["names"].tolist() == ["files/model.keras"]
    assert len((results / "habit.csv").read_text().splitlines()) == 4
    assert "saving model to" in (results / "output 0").read_text()
    assert "saving model to" not in (results / "output 1").read_text()


def test_a_file_loads_without_a_strategy_and_has_the_weights_of_both(results):
    loaded = keras.models.load_model(results / "whole" / "model.keras")
    weights = trainings.flat([*loaded.weights, *loaded.optimizer.variables])
    for arrays in of_both(results, "whole_model"):
        assert equal(arrays["weights"], weights)
    names = sorted(path.name for path in (results / "whole").iterdir())
    assert names == ["1.weights.h5", "2.weights.h5", "model.keras"]
    assert len((results / "whole.csv").read_text().splitlines()) == 3


def test_the_chief_may_have_a_callback_alone(results):
    first, second = of_both(results, "of_the_chief_alone")
    assert equal(first["weights"], second["weights"])
    assert (results / "alone.weights.h5").exists()


def test_the_chief_alone_writes_for_tensor_board_or_each_worker_for_itself(results):
    pytest.importorskip("tensorboard")
    of_both(results, "tensor_board")
    files = list((results / "of chief alone").rglob("events.out*"))
    assert {path.parent.name for path in files} == {"train"}
    assert len(files) == 1
    assert sorted(path.name for path in (results / "of each").iterdir()) == ["worker-0", "worker-1"]
    for rank in range(2):
        assert list((results / "of each" / f"worker-{rank}" / "train").glob("events.out*"))


def test_an_error_of_the_chief_ends_all_workers(results):
    chiefs, others = of_both(results, "failures")
    expected = ["non-directory filepath", "Error: [Errno", "No such file or directory", "No space left on device"]
    whats = ["ModelCheckpoint", "ModelCheckpoint", "CSVLogger", "Writing a backup"]
    for theirs, ours, text, what in zip(chiefs["texts"], others["texts"], expected, whats, strict=True):
        assert text in str(theirs)
        assert str(ours).startswith(f"RuntimeError: {what} failed on worker 0: ")
        assert text in str(ours)
    left = [name for name in chiefs["left"].tolist() if "unfinished" not in name and "part" not in name]
    assert [name.rpartition("/")[2] for name in left] == ["model.weights.h5", "training.json"]
