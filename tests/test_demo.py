"""What `tfdp demo` decides, keeps and says, without starting a worker; and that the example does what the demo does."""

import ast
import dataclasses
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
from typer.testing import CliRunner

import tfdp.compression
from tfdp.cli import demo, demo_data, demo_worker, launcher
from tfdp.cli.demo_cache import cache_folder
from tfdp.cli.demo_report import WorkerReport, ranks_that_differ, read_reports, write_report
from tfdp.cli.errors import LaunchError
from tfdp.cli.main import app
from tfdp.cli.outcome import Outcome
from tfdp.cli.result import LaunchResult

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "digits.py"
REPORT = WorkerReport(
    rank=0,
    num_replicas=2,
    num_correct=350,
    num_test_examples=357,
    weights_digest="a",
    num_timed_steps=290,
    step_seconds=0.0123,
    gradient_bytes=340264,
    sent_bytes=170132,
)


def with_rank(rank, **changes):
    return dataclasses.replace(REPORT, rank=rank, **changes)


# Where things are kept


def test_the_cache_is_where_tfdp_cache_says(tmp_path):
    assert cache_folder({"TFDP_CACHE": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path


def test_without_tfdp_cache_the_cache_lies_where_xdg_wants_it(tmp_path):
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "tfdp"


@pytest.mark.parametrize("environment", [{}, {"TFDP_CACHE": "", "XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}])
def test_without_any_setting_the_cache_lies_in_the_home_folder(environment):
    assert cache_folder(environment) == Path.home() / ".cache" / "tfdp"


# The data


def read(builder, split):
    examples = list(builder.as_dataset(split=split, as_supervised=True).as_numpy_iterator())
    return np.stack([image for image, _ in examples]), np.array([label for _, label in examples])


def as_sorted_rows(images, labels):
    rows = np.concatenate([np.reshape(images, (len(images), -1)), np.reshape(labels, (-1, 1))], axis=1)
    return rows[np.lexsort(rows.T)]


def test_the_two_splits_hold_every_digit_of_scikit_learn_once(tmp_path):
    builder = demo_data.digits(tmp_path)
    images, labels = zip(read(builder, "train"), read(builder, "test"), strict=True)
    assert [len(part) for part in labels] == [1440, 357]
    ours = as_sorted_rows(np.concatenate(images), np.concatenate(labels))
    theirs = as_sorted_rows(*sklearn.datasets.load_digits(return_X_y=True))
    np.testing.assert_array_equal(ours, theirs)


def test_the_data_are_written_once(tmp_path, monkeypatch):
    demo_data.digits(tmp_path)
    monkeypatch.setattr(demo_data, "_write", None)
    assert demo_data.digits(tmp_path).info.splits["train"].num_examples == 1440


def test_several_that_write_at_the_same_time_all_read_the_same(tmp_path):
    with ThreadPoolExecutor(3) as pool:
        builders = list(pool.map(lambda _: demo_data.digits(tmp_path), range(3)))
    expected = read(builders[0], "test")
    for builder in builders[1:]:
        np.testing.assert_array_equal(read(builder, "test")[0], expected[0])
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_who_comes_second_takes_what_the_first_has_written(tmp_path, monkeypatch):
    write_files = demo_data._write_files

    def slowly(folder):
        write_files(folder)
        monkeypatch.setattr(demo_data, "_write_files", write_files)
        demo_data.digits(tmp_path)  # another process, meanwhile

    monkeypatch.setattr(demo_data, "_write_files", slowly)
    assert demo_data.digits(tmp_path).info.splits["test"].num_examples == 357


def test_nobody_reads_what_an_interrupted_run_has_left(tmp_path, monkeypatch):
    def interrupted(folder):
        (folder / "features.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demo_data, "_write_files", interrupted)
        demo_data.digits(tmp_path)
    assert not (tmp_path / "digits" / "1.0.0").exists()
    (tmp_path / "digits" / ".being-written-killed").mkdir()
    assert demo_data.digits(tmp_path).info.splits["test"].num_examples == 357


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "digits").write_text("a file where the folder should be")
    with pytest.raises(OSError):
        demo_data.digits(tmp_path)


# The training


@pytest.mark.parametrize("num_workers", range(1, demo.MAX_WORKERS + 1))
def test_a_batch_divides_among_the_workers(num_workers):
    size = demo_worker.global_batch_size(num_workers)
    assert size % num_workers == 0
    assert 32 < size <= 48


def test_an_epoch_is_whole_batches_of_every_training_example_in_an_order_of_its_own(tmp_path):
    builder = demo_data.digits(tmp_path)

    def epochs():
        batches = demo_worker.training_batches(builder, 48)
        return [[images for images, _ in batches.as_numpy_iterator()] for _ in range(2)]

    first, second = epochs()
    assert {len(batch) for batch in first} == {48}
    assert len(first) == 30
    images, _ = read(builder, "train")
    for epoch in (first, second):
        flat = np.concatenate(epoch)
        np.testing.assert_array_equal(as_sorted_rows(flat, np.zeros(1440)), as_sorted_rows(images, np.zeros(1440)))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(epochs(), [first, second])  # what another worker reads


def test_a_digest_tells_apart_what_differs_in_one_bit():
    weights = [np.zeros((2, 3), np.float32), np.ones(4, np.float32)]
    assert demo_worker.digest(weights) == demo_worker.digest([array.copy() for array in weights])
    assert demo_worker.digest(weights) != demo_worker.digest([weights[0], np.nextafter(weights[1], np.float32(2))])
    assert demo_worker.digest([weights[0]]) != demo_worker.digest([weights[0].reshape(3, 2)])
    assert demo_worker.digest([np.float32([0.0])]) != demo_worker.digest([np.float32([-0.0])])


# The table


def test_reports_are_read_as_they_were_written(tmp_path):
    reports = [with_rank(rank, step_seconds=0.1 / (rank + 1)) for rank in range(3)]
    for report in reports:
        write_report(tmp_path, report)
    assert read_reports(tmp_path, 3) == reports
    with pytest.raises(FileNotFoundError):
        read_reports(tmp_path, 4)


def test_workers_whose_weights_differ_are_named():
    assert ranks_that_differ([with_rank(rank) for rank in range(3)]) == []
    assert ranks_that_differ([with_rank(0), with_rank(1, weights_digest="b"), with_rank(2)]) == [1]


def test_the_table_holds_accuracy_weights_time_and_bytes():
    assert demo.rows([REPORT, with_rank(1)], "bf16") == [
        ("test accuracy", "0.980 (350 of 357)"),
        ("weights equal on all workers", "yes, bit for bit"),
        ("time per step", "12.3 ms (median of 290 steps)"),
        ("gradients per step, as bf16", "170,132 bytes from each of 2 replicas"),
        ("gradients per step, uncompressed", "340,264 bytes from each of 2 replicas"),
    ]


def test_the_table_says_so_when_weights_differ():
    assert ("weights equal on all workers", "NO") in demo.rows([REPORT, with_rank(1, weights_digest="b")], "bf16")


def test_without_compression_the_bytes_stand_there_once():
    rows = demo.rows([dataclasses.replace(REPORT, sent_bytes=340264), with_rank(1)], "none")
    assert rows[3:] == [("gradients per step, uncompressed", "340,264 bytes from each of 2 replicas")]


def test_one_worker_sends_nothing():
    rows = demo.rows([dataclasses.replace(REPORT, num_replicas=1, gradient_bytes=0, sent_bytes=0)], "bf16")
    assert rows[3:] == [("gradients sent per step", "none: there is one replica")]


def test_the_table_fits_a_screen_of_80_columns():
    longest = demo.rows([dataclasses.replace(REPORT, num_replicas=16), with_rank(1)], "bf16")
    assert max(len(quantity) for quantity, _ in longest) + max(len(value) for _, value in longest) + 7 <= 80


# The command


@pytest.fixture
def launches(tmp_path, monkeypatch):
    """Has the launcher start nothing: the workers "end" with an exit status, and may have left reports."""

    class Launches:
        exit_status, reports, calls = 0, (REPORT, with_rank(1)), ()

        def launch(self, command, *, num_workers, log_dir, environment, say):
            self.calls += ({"command": command, "num_workers": num_workers, "environment": environment},)
            for report in self.reports:
                write_report(log_dir, report)
            outcomes = [Outcome(0, self.exit_status, 1.0, last_lines=("Boom",)), Outcome(1, 0, 1.0)]
            failed = 0 if self.exit_status else None
            return LaunchResult(self.exit_status, failed, 1.0, log_dir, tuple(outcomes))

        def demo(self, *arguments):
            return CliRunner().invoke(app, ["demo", *arguments])

        def left_behind(self):
            return [path.name for path in (tmp_path / "cache" / "demo").iterdir()]

    fake = Launches()
    monkeypatch.setattr(launcher, "launch", fake.launch)
    monkeypatch.setenv("TFDP_CACHE", str(tmp_path / "cache"))
    return fake


def test_a_training_that_went_well_ends_with_the_table_and_leaves_no_logs(launches):
    result = launches.demo()
    assert result.exit_code == 0
    assert "0.980 (350 of 357)" in result.output
    assert "yes, bit for bit" in result.output
    assert launches.left_behind() == []


def test_options_reach_the_workers(launches):
    launches.demo("--workers", "3", "--compression", "fp16", "--epochs", "4")
    (call,) = launches.calls
    assert call["num_workers"] == 3
    command = " ".join(call["command"])
    assert "-m tfdp.cli.demo_worker --compression fp16 --epochs 4" in command


def test_weights_that_differ_end_the_demo_with_an_error(launches):
    launches.reports = (REPORT, with_rank(1, weights_digest="b"))
    result = launches.demo()
    assert result.exit_code == 1
    assert "all workers must end with the same weights. Received: worker 1 with others than worker 0" in result.output
    assert launches.left_behind()


def test_a_worker_that_fails_gives_the_demo_its_exit_status_and_its_last_lines(launches):
    launches.exit_status, launches.reports = 7, ()
    result = launches.demo()
    assert result.exit_code == 7
    assert "Boom" in result.output
    assert "worker 0 failed" in result.output
    assert "tfdp demo: the training did not end well." in result.output
    assert launches.left_behind()


def test_a_worker_that_reports_nothing_is_an_error(launches):
    launches.reports = (REPORT,)
    result = launches.demo()
    assert result.exit_code == 1
    assert "every worker must report" in result.output


def test_a_cache_that_cannot_be_written_is_named(launches, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TFDP_CACHE", str(tmp_path / "file"))
    result = launches.demo()
    assert result.exit_code == 2
    assert "The cache folder must be one that can be made and written" in result.output
    assert "TFDP_CACHE" in result.output


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        (["sklearn"], "scikit-learn must be installed"),
        (["sklearn", "tensorflow_datasets"], "tensorflow-datasets and scikit-learn must be installed"),
    ],
)
def test_what_is_not_installed_is_named_in_one_line(absent, words):
    with pytest.raises(LaunchError) as error:
        demo.check_installed(lambda module: None if module in absent else importlib.util.find_spec(module))
    assert words in str(error.value)
    assert 'pip install "tfdp[examples]"' in str(error.value)
    assert "\n" not in str(error.value)


def test_the_demo_trains_on_the_cpu_and_leaves_other_settings_alone():
    environment = demo.worker_environment({"TF_CPP_MIN_LOG_LEVEL": "0", "OMP_NUM_THREADS": "3"})
    assert environment == {"TF_CPP_MIN_LOG_LEVEL": "0", "OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.parametrize("name", [choice.value for choice in demo.Compression])
def test_every_compression_that_the_demo_offers_exists(name):
    assert isinstance(tfdp.compression.get(name), tfdp.compression.Compressor)


# The example


def calls(source, name):
    """Returns the calls of `name` in a program, without the spaces and comments."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [ast.unparse(node) for node in nodes if ast.unparse(node.func) == name]


@pytest.mark.parametrize("name", ["keras.Sequential", "keras.losses.SparseCategoricalCrossentropy", "model.compile"])
def test_the_example_trains_the_network_of_the_demo(name):
    (theirs,) = calls(Path(demo_worker.__file__).read_text(encoding="utf-8"), name)
    (ours,) = calls(EXAMPLE.read_text(encoding="utf-8"), name)
    assert ours == theirs


def test_the_example_is_short_enough_to_read():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 60
