"""`tfdp demo` and the example with real workers on loopback, each with a deadline."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 120.0  # each takes a tenth of it on two idle cores

# Writes down which training examples its worker gets in two epochs.
READ_TWO_EPOCHS = """
import numpy as np
import tfdp
from tfdp.cli import demo_data, demo_worker

strategy = tfdp.MultiWorkerMirroredStrategy()
batches = strategy.experimental_distribute_dataset(demo_worker.training_batches(demo_data.digits(), 48))
images, labels = [], []
for epoch in range(2):
    for batch in batches:
        (images_here,), (labels_here,) = (strategy.experimental_local_results(values) for values in batch)
        images.append(images_here.numpy())
        labels.append(labels_here.numpy())
images, labels = np.reshape(images, (2, 720, 64)), np.reshape(labels, (2, 720))
np.savez(f"part-{strategy.cluster_resolver.task_id}.npz", images=images, labels=labels)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder that all runs of this module keep their data in."""
    return tmp_path_factory.mktemp("cache")


def tfdp(folder, cache, *arguments):
    """Runs `tfdp` with `arguments` in `folder`."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "KERAS_HOME") if name in os.environ
    }
    environment = {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": "-1", "TFDP_CACHE": str(cache)}
    result = subprocess.run(
        [sys.executable, "-m", "tfdp.cli.main", *map(str, arguments)],
        cwd=folder,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_two_workers_of_the_example_end_with_equal_weights(tmp_path, cache):
    tfdp(tmp_path, cache, "run", "-n", 2, "--log-dir", "logs", REPOSITORY / "examples" / "digits.py", "--epochs", 2)
    last_lines = [(tmp_path / "logs" / f"worker-{rank}.log").read_text().splitlines()[-1] for rank in range(2)]
    assert last_lines[0] == last_lines[1]
    match = re.fullmatch(r"test accuracy (0\.\d{3}), weights [0-9a-f]{16}", last_lines[0])
    assert match
    assert float(match[1]) > 0.85


def test_two_workers_of_the_example_with_files_read_their_own(tmp_path, cache):
    example = REPOSITORY / "examples" / "files.py"
    tfdp(tmp_path, cache, "run", "-n", 2, "--log-dir", "logs", example, "--folder", tmp_path / "digits", "--epochs", 3)
    lines = [(tmp_path / "logs" / f"worker-{rank}.log").read_text().splitlines() for rank in range(2)]
    assert "shared by files: 4 files of much the same size for 2 worker(s)" in lines[0]
    assert lines[0][-1] == lines[1][-1]
    match = re.fullmatch(r"training accuracy (0\.\d{3}), weights [0-9a-f]{16}", lines[0][-1])
    assert match
    assert float(match[1]) > 0.85


def test_the_demo_ends_with_its_table_and_writes_to_its_cache_only(tmp_path, cache):
    output = tfdp(tmp_path, cache, "demo", "--epochs", 2)
    assert "Epoch 2/2" in output
    assert "yes, bit for bit" in output
    assert "170,132 bytes from each of 2 replicas" in output
    assert "340,264 bytes from each of 2 replicas" in output
    accuracy = re.search(r"test accuracy\D*(0\.\d{3}) \((\d+) of 357\)", output)
    assert accuracy
    assert float(accuracy[1]) > 0.85
    assert round(int(accuracy[2]) / 357, 3) == float(accuracy[1])
    assert list(tmp_path.iterdir()) == []
    assert sorted(path.name for path in cache.iterdir()) == ["demo", "digits"]
    assert list((cache / "demo").iterdir()) == []


def test_the_workers_together_see_every_training_example_once_an_epoch(tmp_path, cache):
    (tmp_path / "read.py").write_text(READ_TWO_EPOCHS)
    tfdp(tmp_path, cache, "run", "-n", 2, "--log-dir", "logs", "read.py")
    parts = [np.load(tmp_path / f"part-{rank}.npz") for rank in range(2)]
    images = np.concatenate([part["images"] for part in parts], axis=1)  # [epoch, example, pixel]
    labels = np.concatenate([part["labels"] for part in parts], axis=1)
    everything = training_examples(cache)
    for epoch in range(2):
        seen = [image.tobytes() + bytes([label]) for image, label in zip(images[epoch], labels[epoch], strict=True)]
        assert sorted(seen) == everything
    assert not np.array_equal(images[0], images[1])


def training_examples(cache):
    from tfdp.cli import demo_data

    pairs = demo_data.digits(cache).as_dataset(split="train", as_supervised=True).as_numpy_iterator()
    return sorted(image.tobytes() + bytes([label]) for image, label in pairs)
