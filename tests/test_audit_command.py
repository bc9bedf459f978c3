"""What `tfdp audit` prints and refuses, and its exit status."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from tfdp.cli.main import app
from tfdp.data import auditing, reading
from tfdp.data.sources import Arrays


@pytest.fixture(autouse=True)
def settings_that_stay(monkeypatch):
    """Keeps to one test what the command sets in the environment."""
    for name in ("TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES", "KERAS_BACKEND"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.fixture
def data(monkeypatch):
    """Has every name stand for some rows; returns the names that were given."""
    given = []

    def source_of(names, split):
        given.append((names, split))
        return Arrays((np.arange(10), np.arange(10) % 2), "some rows")

    monkeypatch.setattr(reading, "_of_names", source_of)
    return given


def tfdp_audit(*arguments):
    """Runs the command in this process, on a screen that is no terminal."""
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["audit", *arguments])


def test_right_data_end_with_status_0_and_a_table(data):
    result = tfdp_audit("some", "--workers", "2", "--batch", "4", "--seed", "3")
    assert result.exit_code == 0, result.output
    assert data == [("some", None)]
    assert result.output.startswith("some rows: 10 examples for 2 workers of 1 replica, in batches of 4\n")
    assert result.output.endswith("sharded rightly                            yes\n")


def test_wrong_data_end_with_status_1_and_the_problem(data, monkeypatch):
    right = auditing.SimulatedWorker.local_batches
    monkeypatch.setattr(auditing.SimulatedWorker, "local_batches", lambda worker, epoch: right(worker, epoch).skip(2))
    result = tfdp_audit("some", "--workers", "2", "--batch", "4", "--epochs", "1")
    assert result.exit_code == 1
    assert "sharded rightly                            NO\n" in result.output
    assert "PROBLEM: In epoch 0, 8 examples did not come, such as at positions 0, 1, 2, 3 and 4 of the data.\n" in (
        result.output
    )


def test_all_options_reach_the_audit_and_json_tells_all(data):
    options = "--workers 2 --replicas-per-worker 2 --batch 8 --epochs 3 --by examples --uneven drop"
    options += " --shuffle-buffer 5 --seed 1 --split train --label 1 --json"
    result = tfdp_audit("a.csv", "b.csv", *options.split())
    assert result.exit_code == 0, result.output
    assert data == [(["a.csv", "b.csv"], "train")]
    found = json.loads(result.output)
    names = ("num_workers", "num_replicas_per_worker", "global_batch_size", "by", "uneven", "shuffle_buffer", "seed")
    assert [found[name] for name in names] == [2, 2, 8, "examples", "drop", 5, 1]
    assert len(found["epochs"]) == 3 and found["labels"] == {"0": 5, "1": 5} and found["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--label", "z"), "tfdp audit: `label` must be a function of an example, or an index or key into it."),
        (("--by", "files"), "tfdp audit: `by='files'` does not work here: each worker picks its own rows."),
        (("--batch", "0"), "Invalid value for '--batch'"),
        (("--uneven", "some"), "Invalid value for '--uneven'"),
    ],
)
def test_wrong_use_ends_with_status_2_and_no_traceback(data, arguments, error):
    result = tfdp_audit("some", "--workers", "2", "--batch", "4", *arguments)
    assert result.exit_code == 2
    assert error in result.output and "Traceback" not in result.output


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (ValueError("First.\n\nSecond."), "First."),
        (FileNotFoundError(2, "No such file or directory", "a"), "[Errno 2] No such file or directory: 'a'"),
        (
            tf.errors.DataLossError(None, None, "{{node a/b}} corrupted record at 0 [Op:Get] name: "),
            "corrupted record at 0",
        ),
        (ValueError(), "ValueError"),
    ],
)
def test_what_reading_raises_is_told_in_one_line(monkeypatch, raised, line):
    def fail(names, split):
        raise raised

    monkeypatch.setattr(reading, "_of_names", fail)
    result = tfdp_audit("some", "--workers", "2", "--batch", "4")
    assert (result.exit_code, result.output) == (2, f"tfdp audit: {line}\n")


def test_help_imports_no_tensorflow():
    code = (
        "import sys; from typer.testing import CliRunner; from tfdp.cli.main import app; "
        "print(CliRunner().invoke(app, ['audit', '--help']).exit_code, 'tensorflow' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["0", "False"]


def test_tensorflow_says_nothing_of_itself_while_it_is_imported(tmp_path):
    command = [sys.executable, "-m", "tfdp.cli.main", "audit", str(tmp_path), "--workers", "2", "--batch", "4"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("tfdp audit: ") and result.stderr.count("\n") == 1
