"""The command `tfdp demo`: trains a small network on handwritten digits with several workers of this machine."""

import enum
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import rich.console
import rich.table
import typer

from tfdp.cli import launcher
from tfdp.cli.command import worker_command
from tfdp.cli.demo_cache import cache_folder
from tfdp.cli.demo_report import WorkerReport, ranks_that_differ, read_reports
from tfdp.cli.errors import LaunchError
from tfdp.cli.report import ranks_in_words, report, workers_in_words

MAX_WORKERS = 16


class Compression(str, enum.Enum):
    """What the workers of the demo send to each other."""

    none = "none"
    bf16 = "bf16"
    fp16 = "fp16"


def demo(
    workers: Annotated[
        int, typer.Option("--workers", "-n", min=1, max=MAX_WORKERS, help="Workers to start on this machine.")
    ] = 2,
    compression: Annotated[Compression, typer.Option(help="How gradients travel between them.")] = Compression.bf16,
    epochs: Annotated[int, typer.Option(min=1, help="How often to go through the training data.")] = 10,
) -> None:
    """Train a small network on handwritten digits with several workers, and show what it took.

    The data come with scikit-learn and are kept in ~/.cache/tfdp, or where TFDP_CACHE says. It trains on the CPU.
    """
    try:
        check_installed()
        folder = _make_run_folder(cache_folder(os.environ))
        reports = _train(folder, num_workers=workers, compression=compression.value, epochs=epochs)
    except LaunchError as error:
        typer.echo(f"tfdp demo: {error}", err=True)
        raise typer.Exit(2) from None
    title = f"Handwritten digits, {workers_in_words(workers)}, {compression.value}"
    rich.console.Console().print(table(title, rows(reports, compression.value)))
    differing = ranks_that_differ(reports)
    if differing:
        typer.echo(
            f"tfdp demo: all workers must end with the same weights. Received: {ranks_in_words(differing)} with others "
            "than worker 0. This is a fault of tfdp or of this machine: please report it.",
            err=True,
        )
        raise typer.Exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def check_installed(find: Callable[[str], Any] = importlib.util.find_spec) -> None:
    """Raises a LaunchError unless what the demo needs beyond tfdp is installed.

    Args:
        find: returns None for a module that is not there.
    """
    packages = {"tensorflow_datasets": "tensorflow-datasets", "sklearn": "scikit-learn"}
    missing = [package for module, package in packages.items() if find(module) is None]
    if missing:
        raise LaunchError(f'{" and ".join(missing)} must be installed for the demo: pip install "tfdp[examples]"')


def rows(reports: Sequence[WorkerReport], compression: str) -> list[tuple[str, str]]:
    """Returns what the table says: pairs of a quantity and its value.

    Args:
        reports: one from every worker.
        compression: the name of the compressor.
    """
    chief = reports[0]
    equal = "yes" if not ranks_that_differ(reports) else "NO"
    return [
        ("test accuracy", f"{chief.accuracy:.3f} ({chief.num_correct} of {chief.num_test_examples})"),
        ("weights equal on all workers", f"{equal}, bit for bit" if equal == "yes" else equal),
        ("time per step", f"{chief.step_seconds * 1000:.1f} ms (median of {chief.num_timed_steps} steps)"),
        *_traffic_rows(chief, compression),
    ]


def _traffic_rows(chief: WorkerReport, compression: str) -> list[tuple[str, str]]:
    if chief.num_replicas == 1:
        return [("gradients sent per step", "none: there is one replica")]
    sender = f"from each of {chief.num_replicas} replicas"
    uncompressed = ("gradients per step, uncompressed", f"{chief.gradient_bytes:,} bytes {sender}")
    if compression == "none":
        return [uncompressed]
    return [(f"gradients per step, as {compression}", f"{chief.sent_bytes:,} bytes {sender}"), uncompressed]


def table(title: str, pairs: Sequence[tuple[str, str]]) -> rich.table.Table:
    """Returns a table of `pairs`, a line each."""
    result = rich.table.Table(title=title, title_justify="left", show_header=False)
    for quantity, value in pairs:
        result.add_row(quantity, value)
    return result


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of the workers of a demo, which train on the CPU.

    On a machine with one GPU two workers would want the same, which its collectives (NCCL) refuse.
    """
    # TensorFlow calls it an error that there is no GPU. What fails in earnest raises an exception.
    return {"TF_CPP_MIN_LOG_LEVEL": "3", **environment, "CUDA_VISIBLE_DEVICES": "-1"}


def _make_run_folder(cache: Path) -> Path:
    """Makes a folder for the logs and reports of one demo; raises a LaunchError where that is impossible."""
    parent = cache / "demo"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise LaunchError(
            f"The cache folder must be one that can be made and written. Received: '{cache}' ({error.strerror}). "
            "Choose another with the environment variable TFDP_CACHE."
        ) from error


def _train(folder: Path, *, num_workers: int, compression: str, epochs: int) -> list[WorkerReport]:
    """Trains with the chief's output on the screen, and returns every worker's report.

    Raises:
        typer.Exit: a worker failed, or a signal ended the training; what is to be said has been said.
    """
    typer.echo(f"Starting {workers_in_words(num_workers)}, which takes some seconds. This is what the chief shows:")
    sys.stdout.flush()
    arguments = ["--compression", compression, "--epochs", str(epochs), "--report-folder", str(folder)]
    result = launcher.launch(
        worker_command("tfdp.cli.demo_worker", arguments, module=True),
        num_workers=num_workers,
        log_dir=folder,
        environment=worker_environment(os.environ),
        say=lambda line: typer.echo(line, err=True),
    )
    if result.exit_status:
        typer.echo(f"{report(result)}\ntfdp demo: the training did not end well.", err=True)
        raise typer.Exit(result.exit_status)
    try:
        return read_reports(folder, num_workers)
    except FileNotFoundError as error:
        typer.echo(f"tfdp demo: every worker must report. Received: no {error.filename}.", err=True)
        raise typer.Exit(1) from None
