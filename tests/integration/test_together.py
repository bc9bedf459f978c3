"""Workers begin with the same weights, draw other random numbers, stop together, and the chief alone tells of it."""

import numpy as np
import pytest
import trainings
from integration import workers

PROGRAM = """
import pathlib, sys, tempfile, warnings
import keras
import numpy as np
import tensorflow as tf
import tfdp, together, trainings

strategy = tfdp.MultiWorkerMirroredStrategy()
folder = pathlib.Path(sys.argv[1], f"worker {strategy.worker}")
folder.mkdir()
for name, check in together.CHECKS.items():
    trainings.record(folder, name, lambda: check(strategy))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of what the checks returned, and how the two workers ended."""
    folder = tmp_path_factory.mktemp("together")
    settings = {"TFDP_START_TIMEOUT": "20"}
    processes = workers.start_cluster(PROGRAM, folder, num_workers=2, **settings)
    return folder, workers.finish(processes, deadline_seconds=150.0)


@pytest.fixture(scope="module")
def returned(ended):
    """name -> what the check of that name returned on each worker."""
    return lambda name: [trainings.recorded(ended[0] / f"worker {rank}", name) for rank in range(2)]


def message(result):
    return str(result["message"])


def test_both_workers_run_to_their_end(ended):
    assert [one.status for one in ended[1]] == [0, 0], workers.report(ended[1])


def test_weights_begin_equal_whatever_the_seeds_of_the_workers(returned):
    first, second = returned("start")
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert np.std(first["weights"]) > 0.1


def test_each_replica_draws_masks_of_its_own_and_the_same_in_each_run(returned):
    results = returned("masks")
    assert len({result["masks"].tobytes() for result in results}) == 2
    for result in results:
        np.testing.assert_array_equal(result["masks"], result["masks_again"])
        assert (result["masks"] != result["masks_of_next_step"]).any()


def test_random_numbers_without_a_seed_differ_between_replicas(returned):
    assert len({result["numbers"].tobytes() for result in returned("unseeded")}) == 2


def test_a_layer_that_draws_without_a_seed_trains(returned):
    first, second = returned("trained_with_noise")
    np.testing.assert_array_equal(first["weights"], second["weights"])
    assert np.isfinite(first["weights"]).all()


def test_weights_that_differ_are_an_error_before_the_first_step(returned):
    for rank, result in enumerate(returned("other_weights")):
        assert "All workers must begin with the same weights" in message(result)
        where = f"/bias on worker {rank} than on worker {1 - rank}."
        assert "Received: other values of " in message(result)
        assert message(result).endswith(where)
        assert result["num_steps"] == 0


@pytest.mark.parametrize(
    ("name", "num_batches"),
    [
        ("stop_of_one_worker_within_an_epoch", 4),  # it wishes so after 3
        ("stop_of_one_worker_at_an_epoch_s_end", 5),
        ("stop_of_all_workers", 3),
        ("stop_of_a_list_of_callbacks", 4),
    ],
)
def test_all_workers_stop_after_the_same_batch(returned, name, num_batches):
    for result in returned(name):
        assert result["num_batches"] == num_batches


def test_who_has_wished_to_stop_sees_it(returned):
    first, second = returned("stop_of_one_worker_within_an_epoch")
    assert [bool(result["saw_own_wish"]) for result in (first, second)] == [False, True]


def test_a_call_of_the_chief_alone_is_an_error_on_all(returned):
    on_chief, on_other = returned("evaluate_on_chief")
    assert "Received: the start of `evaluate` here, the start of `fit` there" in message(on_chief)
    assert "Received: the start of `fit` here, the start of `evaluate` there" in message(on_other)


def test_other_epochs_on_each_worker_are_an_error(returned):
    for result in returned("other_epochs"):
        assert "`epochs` of `fit` must be the same on all workers. Received: worker 0: 1, worker 1: 2." in message(
            result
        )


def test_other_steps_per_execution_on_each_worker_are_an_error(returned):
    for result in returned("other_steps_per_execution"):
        assert "`steps_per_execution` of `fit` must be the same on all workers." in message(result)


def test_a_batch_of_the_chief_alone_is_an_error_on_all(returned):
    on_chief, on_other = returned("predict_on_batch_on_chief")
    assert "Received: the start of `predict_on_batch` here, the start of `fit` there" in message(on_chief)
    assert "Received: the start of `fit` here, the start of `predict_on_batch` there" in message(on_other)


def test_workers_that_come_apart_are_told_at_the_end(ended, returned):
    first, second = returned("changed_on_chief")
    assert (first["weights"] != second["weights"]).any()
    assert "tfdp: workers have come apart, since something was changed on one of them alone." in ended[1][0].output


def test_the_chief_may_save_alone(returned):
    first, second = returned("save_on_chief")
    np.testing.assert_array_equal(first["saved"], first["weights"])
    np.testing.assert_array_equal(first["after"], second["after"])


def test_numbers_of_variables_can_be_read_in_callbacks(returned):
    for result in returned("numbers"):
        assert result["iterations"].tolist() == [1, 2, 3, 4]
        np.testing.assert_allclose(result["rates"], [0.1, 0.1, 0.1, 0.01], rtol=1e-6)


def test_examples_of_all_replicas_are_counted_once(returned):
    for result in returned("throughput"):
        assert (result["examples"], result["steps"]) == (30, 9)
        assert 0 < result["first_step_seconds"] < result["seconds"]
        assert result["examples_per_second"] == pytest.approx(30 / result["seconds"])
        assert result["steady_examples_per_second"] == pytest.approx(
            26 / (result["seconds"] - result["first_step_seconds"])
        )


def test_memory_does_not_grow_with_steps(returned):
    for result in returned("memory"):
        assert result["grown_mebibytes"] < 30


def test_the_chief_alone_shows_progress_and_warnings(ended):
    first, second = (one.output for one in ended[1])
    for text in ("Epoch 1/2", "ran out of data", "ms/step"):
        assert text in first
        assert text not in second
