"""The command `tfdp audit`: whether a data set is shared out rightly, before anybody trains."""

import contextlib
import enum
import json
import os
import re
from collections.abc import Iterator
from typing import Annotated, Any

import rich.console
import typer

# What TensorFlow and Keras read when they are imported, unless the user has set it.
_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}


class By(str, enum.Enum):
    """What workers share."""

    auto = "auto"
    files = "files"
    examples = "examples"


class Uneven(str, enum.Enum):
    """What becomes of a last batch that is not full."""

    exact = "exact"
    drop = "drop"
    pad = "pad"


def audit(
    data: Annotated[
        list[str],
        typer.Argument(
            metavar="FILES_OR_DATASET...",
            help="Files of one kind, or patterns of their names; or the name of a data set of TensorFlow Datasets.",
        ),
    ],
    workers: Annotated[int, typer.Option("--workers", "-n", min=1, help="Workers that would share the data.")],
    batch: Annotated[int, typer.Option("--batch", "-b", min=1, help="Examples of a step, of all replicas together.")],
    replicas_per_worker: Annotated[int, typer.Option(min=1, help="Devices of each worker.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="How many epochs to read.")] = 2,
    by: Annotated[By, typer.Option(help="Whether workers share files or examples.")] = By.auto,
    uneven: Annotated[Uneven, typer.Option(help="What becomes of a last batch that is not full.")] = Uneven.exact,
    shuffle_buffer: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="How many examples a shuffled one is drawn from.", show_default=False),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of all orders. By default one is drawn.", show_default=False)
    ] = None,
    split: Annotated[str | None, typer.Option(help="Of a data set: train, 'test[:10%]' ..", show_default=False)] = None,
    label: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Where an example has its label: the name of a column, or a number. By default the second of a pair.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Read a data set as all workers would, and tell whether each example comes exactly once an epoch.

    The exit status is 0 where it does, 1 where something is wrong, and 2 where the data cannot be read in this way.

    For example:

    tfdp audit 'data/train-*.tfrecord' --workers 4 --batch 256 --shuffle-buffer 10000
    """
    options = {
        "num_workers": workers,
        "num_replicas_per_worker": replicas_per_worker,
        "global_batch_size": batch,
        "epochs": epochs,
        "by": by.value,
        "uneven": uneven.value,
        "shuffle_buffer": shuffle_buffer,
        "seed": seed,
        "split": split,
        "label": int(label) if label and label.lstrip("-").isdecimal() else label,
    }
    found = _audited(data, options)
    console = rich.console.Console()
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    elif console.is_terminal:
        console.print(found.as_table())
    else:
        typer.echo(str(found))
    raise typer.Exit(0 if found.is_right else 1)


def _audited(data: list[str], options: dict[str, Any]) -> Any:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # TensorFlow would take all memory of GPUs that others train on
    with _silent_stderr():  # only now, so that `tfdp run` starts without them
        import tensorflow as tf

        import tfdp.data

    try:
        return tfdp.data.audit(data[0] if len(data) == 1 else data, **options)
    except (ValueError, TypeError, OSError, ImportError, tf.errors.OpError) as error:
        typer.echo(f"tfdp audit: {_in_one_line(error)}", err=True)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Keeps from the screen what TensorFlow logs while it is imported, before any log level counts."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _in_one_line(error: Exception) -> str:
    """Returns the first line that says something, without what TensorFlow adds of itself."""
    text = re.sub(r"{{.*?}} ?| \[Op:.*", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
