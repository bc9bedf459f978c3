"""Writes docs/parity.md: every training of the table on one device, under TensorFlow's strategy and under tfdp's.

Run by `make parity`. A training that raises, differs or hangs is an entry of the table.
"""

import concurrent.futures
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
import trainings
from integration import workers

import tfdp

PAGE = workers.TESTS.parent / "docs" / "parity.md"
START_SECONDS, TRAINING_SECONDS = 60.0, 40.0
WAS_ENDED = "hang"

# A process ends after the first training that fails, as what follows in it could fail for that reason alone.
PROGRAM = """
import json, os, pathlib, sys
import tensorflow as tf
import tfdp, trainings

num_devices, folder, names = int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3:]
if num_devices > 1 and "TF_CONFIG" not in os.environ:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * num_devices
    )
strategy = make_strategy()
folder = folder / str(json.loads(os.environ["TF_CONFIG"])["task"]["index"] if "TF_CONFIG" in os.environ else 0)
folder.mkdir(exist_ok=True)
for name in names:
    trainings.record_all(folder, strategy, [name])
    if not (folder / f"{name}.npz").exists():
        break
"""


class Layout(NamedTuple):
    """Where trainings run.

    Attributes:
        heading: of the layout's column.
        make_strategy: an expression.
        num_devices: of each process.
        num_workers: processes of a cluster, or 0 for one process without a cluster.
        band: how far losses may be from those of one device, relative, where compression loses something; 0 asks for
            equality.
    """

    heading: str
    make_strategy: str
    num_devices: int = 1
    num_workers: int = 0
    band: float = 0.0


ONE_DEVICE = Layout("one device", "None")
STOCK = Layout("stock MirroredStrategy, 2", "tf.distribute.MirroredStrategy()", 2)
LAYOUTS = (
    ONE_DEVICE,
    STOCK,
    Layout("tfdp Mirrored, 2", "tfdp.MirroredStrategy()", 2),
    Layout("tfdp Mirrored, 4", "tfdp.MirroredStrategy()", 4),
    Layout(
        "tfdp Mirrored, 2 hosts of 2",
        "tfdp.MirroredStrategy(topology=tfdp.Topology.from_hosts(['a', 'a', 'b', 'b']))",
        4,
    ),
    Layout("tfdp 2 workers", "tfdp.MultiWorkerMirroredStrategy()", 1, 2),
    Layout("tfdp 2 workers of 2", "tfdp.MultiWorkerMirroredStrategy()", 2, 2),
    Layout("bf16, 2 workers", 'tfdp.MultiWorkerMirroredStrategy(compression="bf16")', 1, 2, 0.05),
    Layout(
        "int8 and error feedback, Mirrored, 2",
        "tfdp.MirroredStrategy(compression=trainings.COMPRESSORS['int8'].build())",
        2,
        0,
        0.05,
    ),
    Layout(
        "sign and error feedback, Mirrored, 2",
        "tfdp.MirroredStrategy(compression=trainings.COMPRESSORS['sign'].build())",
        2,
        0,
        0.8,
    ),
)


def run(layout: Layout, folder: Path, names: list[str]) -> None:
    """Records the trainings under `layout`: in as few processes as can be, but in new ones after one that fails."""
    folder.mkdir(exist_ok=True)
    ranks = [folder / str(rank) for rank in range(layout.num_workers or 1)]
    while left := [name for name in names if not all(is_recorded(rank, name) for rank in ranks)]:
        processes = start(layout, folder, left)
        ended = follow(processes, ranks, left)
        stopped_at = next((name for name in left if not all(is_recorded(rank, name) for rank in ranks)), None)
        failed_before = any((rank / f"{name}.error").exists() for name in left for rank in ranks)
        if stopped_at is not None and (not failed_before or any(is_recorded(rank, stopped_at) for rank in ranks)):
            statuses = {process.status for process in ended}
            reason = (
                WAS_ENDED if None in statuses else f"ProcessError: ended with status {next(filter(None, statuses), 0)}"
            )
            print(f"{layout.heading}, {stopped_at}: {reason}\n{workers.report(ended)}", file=sys.stderr)
            for rank in ranks:
                rank.mkdir(exist_ok=True)
                if not is_recorded(rank, stopped_at):
                    (rank / f"{stopped_at}.error").write_text(reason)
        print(f"{layout.heading}: {len(names) - len(left)} and more of {len(names)}", file=sys.stderr)


def start(layout: Layout, folder: Path, names: list[str]) -> list[workers.Process]:
    program = f"make_strategy = lambda: {layout.make_strategy}\n{PROGRAM}"
    arguments = [layout.num_devices, folder, *names]
    if not layout.num_workers:
        return [workers.start(program, *arguments)]
    return workers.start_cluster(
        program, *arguments, num_workers=layout.num_workers, TFDP_DEVICES_PER_WORKER=str(layout.num_devices)
    )


def follow(processes: list[workers.Process], ranks: list[Path], names: list[str]) -> list[workers.Ended]:
    """Waits for the processes as long as they record one training after another, and ends those that do not."""
    recorded, deadline = 0, time.monotonic() + START_SECONDS + TRAINING_SECONDS
    while time.monotonic() < deadline and not all(process.has_ended() for process in processes):
        now_recorded = sum(is_recorded(rank, name) for rank in ranks for name in names)
        if now_recorded > recorded:
            recorded, deadline = now_recorded, time.monotonic() + TRAINING_SECONDS
        time.sleep(0.2)
    return [process.finish() for process in processes]


def is_recorded(folder: Path, name: str) -> bool:
    return any((folder / f"{name}.{kind}").exists() for kind in ("npz", "error"))


def entry(name: str, layout: Layout, folder: Path) -> str:
    """Returns how a training under `layout` compares with one device, in a few words."""
    reference = folder / ONE_DEVICE.heading / "0"
    ranks = [folder / layout.heading / str(rank) for rank in range(layout.num_workers or 1)]
    errors = [(rank / f"{name}.error").read_text() for rank in ranks if (rank / f"{name}.error").exists()]
    if errors:
        # Where one worker hangs because the other has failed, the failure tells more.
        return in_words(next((error for error in errors if error != WAS_ENDED), WAS_ENDED))
    if not (reference / f"{name}.npz").exists():
        return "nothing to compare with"
    if layout == ONE_DEVICE:
        return "reference"
    expected = trainings.recorded(reference, name)
    received = [trainings.recorded(rank, name) for rank in ranks]
    if any(one[array].tobytes() != received[0][array].tobytes() for one in received for array in one):
        return "workers differ"
    if layout.band:
        return how_near(expected, received[0], layout.band)
    tolerance = trainings.TRAININGS[name].tolerance
    if not trainings.differences(expected, received[0], tolerance):
        return "equal"
    return how_far(expected, received[0])


def how_far(expected: dict[str, np.ndarray], received: dict[str, np.ndarray]) -> str:
    if any(expected[array].shape != received[array].shape for array in expected):
        return "differs in shape"
    distances = []
    for array, values in expected.items():
        one, other = values.astype(np.complex128), received[array].astype(np.complex128)
        distances.append(np.max(np.abs(one - other), initial=0.0) / max(np.max(np.abs(one), initial=0.0), 1e-9))
    drifted = "copies_that_differ" in received and received["copies_that_differ"] > 0
    distances = [d for array, d in zip(expected, distances, strict=True) if array != "copies_that_differ"]
    words = f"differs by {max(distances):.1g}" if np.all(np.isfinite(distances)) else "differs: not finite"
    return f"{words}, replicas drift apart" if drifted else words


def how_near(expected: dict[str, np.ndarray], received: dict[str, np.ndarray], band: float) -> str:
    """Returns how far the losses of a training with lossy compression are from those of one device."""
    if not all(np.all(np.isfinite(values)) == np.all(np.isfinite(expected[name])) for name, values in received.items()):
        return "not finite"
    if "copies_that_differ" in received and received["copies_that_differ"] > 0:
        return "replicas drift apart"
    losses = [name for name in expected if "loss" in name and expected[name].size]
    if not losses:
        return "in step"
    distances = [
        np.max(np.abs(received[name] - expected[name])) / max(np.max(np.abs(expected[name])), 1e-9) for name in losses
    ]
    within = "in step" if max(distances) <= band else "**out of its band**"
    return f"{within}, {max(distances):.1g}"


def in_words(error: str) -> str:
    if error == WAS_ENDED:
        return "hang"
    lines = [line for line in error.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    kind, _, message = (lines[-1] if lines else error.strip().splitlines()[-1]).partition(":")
    first_words = " ".join(re.sub(r"[|`<>{}*_\\]", " ", message).split()[:8])
    return f"error: {kind.split('.')[-1]}: {first_words} .."


INTRODUCTION = """\
# Parity

Small trainings, each run on one device and under strategies, with the same data and the same start. What a training
leaves is compared with that of one device: weights, the losses and metrics of every epoch, and, where the training has
them, evaluations, predictions and counters. This page is written by `make parity`.

- **equal**: every compared array is at most the tolerance from that of one device, relative to the array's largest
  element; all copies of every variable that replicas share have the same bits; and all workers return the same bits.
- **differs by** X: the largest such distance. **replicas drift apart**: copies of a variable are no longer the same.
- **in step**, X: for lossy compression of every gradient, however small: all values are finite, all copies and workers
  have the same bits, and no loss is further than X from that of one device, relative to the largest. The band is
  {bands}.
- **error**: the training ends with an exception; its first words follow. **hang**: it does not end in {seconds:.0f} s.

"Stock" is TensorFlow's own `tf.distribute.MirroredStrategy` with the same Keras, on two devices.

| layout | equal, or in step | of |
|---|---|---|
{summary}

Made with {versions}, on CPU devices of {processor}.

## What differs by design

- `BatchNormalization` without `synchronized=True` normalizes with the statistics of each replica's own rows, as is
  meant. Its moving statistics are the mean over all replicas, the same on each. It is not in the table.
- A loss that a user's function returns as a scalar, and one of `add_loss`, counts as the mean over a replica's rows. A
  sum over rows is weighted as if it were a mean. (Activity regularizers are right, of older Keras too.)
- `jit_compile=True` with several replicas on CPUs is refused: XLA has no collectives there. `"auto"` trains.
- Dropout masks and augmentation are drawn by each replica, and so are others than those of one device.
- `evaluate` and `predict` on the chief alone are an error on all workers.
- Variables that layers write in a step become the mean over the replicas, by rows; counts of rows want
  `aggregation="sum"`. See [strategies](strategies.md#steps-losses-and-variables-of-your-own).
- Where data of unknown length end, Keras without a strategy counts a batch that was not in its losses, if batches have
  a static size. The table compares with what it would be without.

## What the table does not cover

Random numbers, stopping on one worker, callbacks that save, and errors are tested elsewhere in `tests/`.

## The table

"""


def page(folder: Path, names: list[str]) -> str:
    entries = {name: [entry(name, layout, folder) for layout in LAYOUTS] for name in names}
    headings = ["training", "tolerance", *(layout.heading for layout in LAYOUTS)]
    rows = [
        [name.replace("_", " "), f"{trainings.TRAININGS[name].tolerance:g}", *cells] for name, cells in entries.items()
    ]
    lines = [headings, ["---"] * len(headings), *rows]
    summary = [
        f"| {layout.heading} | {sum(is_right(cells[column]) for cells in entries.values())} | {len(names)} |"
        for column, layout in enumerate(LAYOUTS)
        if layout != ONE_DEVICE
    ]
    packages = ", ".join(f"{package.__name__} {package.__version__}" for package in (tfdp, tf, keras))
    versions = f"{packages}, Python {platform.python_version()}"
    introduction = INTRODUCTION.format(
        seconds=TRAINING_SECONDS,
        summary="\n".join(summary),
        versions=versions,
        processor=processor(),
        bands=" and ".join(
            f"{layout.band:g} for {layout.heading.split()[0].strip(',')}" for layout in LAYOUTS if layout.band
        ),
    )
    return introduction + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def is_right(cell: str) -> bool:
    return cell == "equal" or cell.startswith("in step")


def processor() -> str:
    """Returns the processor's name, where Linux tells it, or its kind."""
    information = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", information.read_text()) if information.exists() else []
    return names[0] if names else platform.machine()


def main() -> None:
    names = sys.argv[1:] or list(trainings.TRAININGS)
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(2) as pool:
        folder = Path(temporary)
        # The slowest begin first.
        for future in [pool.submit(run, layout, folder / layout.heading, names) for layout in reversed(LAYOUTS)]:
            future.result()
        PAGE.write_text(page(folder, names))
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")


if __name__ == "__main__":
    main()
