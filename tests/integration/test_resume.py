"""Workers that were killed are started again, and go on with what their gradients had not sent yet."""

import shutil
import signal

import numpy as np
import pytest
import trainings
from integration import workers

# Batches are 5 an epoch; the state folder is shared, the models' backups are not.
START = """
import os, pathlib, shutil, signal, sys, time
import keras, numpy as np
import tfdp, trainings
from tfdp.callbacks import CompressionStateBackup

folder = pathlib.Path(sys.argv[1])
x, y = trainings.regression(num_columns=32)

def make():
    strategy = tfdp.MultiWorkerMirroredStrategy(compression="int8")
    return strategy, trainings.compiled(strategy, lambda: trainings.mlp(num_columns=32, hidden=64))

def callbacks():
    return [
        keras.callbacks.BackupAndRestore(folder / f"model of {rank}"), CompressionStateBackup(folder / "state")
    ]

def fit(model, callbacks=()):
    trainings.fit(model, x, y, epochs=4, callbacks=list(callbacks))
    return {"weights": trainings.flat(model.weights)}

def residuals(strategy):
    # Of this process's replicas, [replicas, elements].
    states = [part.states.values() for part in strategy.compression_state.parts()]
    return np.array([np.concatenate([np.ravel(leaf) for leaves in one for leaf in leaves]) for one in states])

strategy, model = make()
rank = strategy.cluster_resolver.task_id or 0
"""
KILLED = """
trainings.record(folder, f"uninterrupted {rank}", lambda: fit(model))

class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            np.savez(folder / f"saved {rank}.npz", residuals=residuals(strategy))

    def on_train_batch_end(self, batch, logs=None):
        if int(model.optimizer.iterations.numpy()) == 12:
            (folder / f"at the end {rank}").touch()
            while not all((folder / f"at the end {other}").exists() for other in range(2)):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

strategy, model = make()
fit(model, [*callbacks(), Die()])
"""
# A step is trained before the backups are restored, so that there are variables to look at.
RESTARTED = """
class Look(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if not found:
            found.update(epoch=epoch, residuals=residuals(strategy))

found = {}
model.train_on_batch(x[:32], y[:32])
trainings.record(folder, f"restarted {rank}", lambda: {**fit(model, [*callbacks(), Look()]), **found})
"""
# Workers and the devices of each.
LAYOUTS = {"2 workers": (2, 1), "3 workers": (3, 1), "1 worker of 2 devices": (1, 2)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder of what workers recorded: in "killed", and by layout once they were started again."""
    folder = tmp_path_factory.mktemp("resume")
    killed = folder / "killed"
    killed.mkdir()
    ended = workers.finish(workers.start_cluster(START + KILLED, killed), deadline_seconds=120.0)
    assert [worker.status for worker in ended] == [-signal.SIGKILL] * 2, workers.report(ended)
    clusters = {}
    for layout, (num_workers, num_devices) in LAYOUTS.items():
        shutil.copytree(killed, folder / layout)
        for rank in range(2, num_workers):
            shutil.copytree(killed / "model of 0", folder / layout / f"model of {rank}")
        settings = {"TFDP_DEVICES_PER_WORKER": str(num_devices), "TFDP_START_TIMEOUT": "100"}
        clusters[layout] = workers.start_cluster(
            START + RESTARTED, folder / layout, num_workers=num_workers, **settings
        )
    for layout, processes in clusters.items():
        ended = workers.finish(processes, deadline_seconds=150.0)
        if any(worker.status != 0 for worker in ended):
            (folder / layout / "how it ended").write_text(workers.report(ended))
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_workers_ran_to_their_end(results, layout):
    ended = results / layout / "how it ended"
    assert not ended.exists(), ended.read_text()


def test_restarted_workers_end_where_uninterrupted_ones_do_bit_for_bit(results):
    expected = trainings.recorded(results / "killed", "uninterrupted 0")["weights"]
    assert trainings.recorded(results / "killed", "uninterrupted 1")["weights"].tobytes() == expected.tobytes()
    for rank in range(2):
        arrays = trainings.recorded(results / "2 workers", f"restarted {rank}")
        assert arrays["epoch"] == 2
        assert arrays["weights"].tobytes() == expected.tobytes()


def saved(results):
    """Returns the residuals at the last backup of the workers that were killed, [2, elements]."""
    with_rank = [trainings.recorded(results / "killed", f"saved {rank}")["residuals"] for rank in range(2)]
    assert all(np.any(residuals) for residuals in with_rank)
    return np.concatenate(with_rank)


def restored(results, layout):
    num_workers, _ = LAYOUTS[layout]
    return np.concatenate(
        [trainings.recorded(results / layout, f"restarted {rank}")["residuals"] for rank in range(num_workers)]
    )


@pytest.mark.parametrize("layout", ["2 workers", "1 worker of 2 devices"])
def test_as_many_replicas_go_on_with_their_own_residuals(results, layout):
    np.testing.assert_array_equal(restored(results, layout), saved(results))


def test_more_replicas_share_the_residuals_of_all(results):
    received = restored(results, "3 workers")
    assert len(received) == 3
    np.testing.assert_allclose(received.sum(axis=0), saved(results).sum(axis=0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_trains_to_the_end_with_equal_workers_and_leaves_no_files(results, layout):
    num_workers, _ = LAYOUTS[layout]
    weights = [trainings.recorded(results / layout, f"restarted {rank}")["weights"] for rank in range(num_workers)]
    assert all(one.tobytes() == weights[0].tobytes() for one in weights)
    expected = trainings.recorded(results / "killed", "uninterrupted 0")["weights"]
    np.testing.assert_allclose(weights[0], expected, atol=0.01)
    assert not (results / layout / "state").exists()
