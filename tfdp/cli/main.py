"""The command `tfdp` and its subcommands."""

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tfdp import __version__
from tfdp.cli import environment as worker_settings
from tfdp.cli import launcher
from tfdp.cli.audit import audit
from tfdp.cli.command import worker_command
from tfdp.cli.demo import demo
from tfdp.cli.devices import visible_gpus
from tfdp.cli.errors import LaunchError
from tfdp.cli.report import report
from tfdp.cli.screen import Screen, give_up_after
from tfdp.cli.topology import topology

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


class Show(str, enum.Enum):
    """Whose output `tfdp run` shows."""

    chief = "chief"
    all = "all"
    none = "none"


def main() -> None:
    """Runs the command line."""
    app(prog_name="tfdp")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tfdp {__version__}")
        raise typer.Exit


@app.callback()
def tfdp(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Data parallelism for Keras 3 on TensorFlow."""


# What follows TARGET belongs to the program, options too.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A Python file (its name ends in .py), or any program; with -m a module."
        ),
    ],
    num_workers: Annotated[int, typer.Option("--num-workers", "-n", min=1, help="Workers to start on this machine.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the program, passed on untouched.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="TARGET is a module, as in python -m.")] = False,
    devices_per_worker: Annotated[
        int | None,
        typer.Option(
            min=1, help="Devices of each worker. Where there are NVIDIA GPUs, each gets that many of its own."
        ),
    ] = None,
    show: Annotated[
        Show,
        typer.Option(
            help="Whose output to show: the chief's as it comes, all in lines with the rank in front, or none."
        ),
    ] = Show.chief,
    log_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the output of every worker. By default a fresh one in tfdp-logs of the current folder.",
            show_default=False,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="How long workers may take to end before they are killed."),
    ] = 5.0,
    start_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            envvar="TFDP_START_TIMEOUT",
            help="How long the first worker to make its tfdp strategy waits for the others to begin to.",
        ),
    ] = 60.0,
) -> None:
    """Start a cluster of workers on this machine and run a program in each.

    When one worker fails, the others are ended; the exit status is that of the one that failed first.

    Ctrl-C ends all workers and what they started; a second one kills them at once.

    For example:

    tfdp run -n 4 train.py --epochs 10

    tfdp run -n 2 --devices-per-worker 4 -m my_package.train

    tfdp run -n 3 --show all python -c "import os; print(os.environ['TF_CONFIG'])"
    """
    messages = Screen(sys.stderr)

    def say(text: str) -> None:
        messages.write(f"{text}\n".encode(errors="replace"))

    try:
        result = launcher.launch(
            worker_command(target, arguments or (), module=module),
            num_workers=num_workers,
            devices_per_worker=devices_per_worker,
            show=show.value,
            log_dir=log_dir,
            grace_seconds=grace,
            start_timeout_seconds=start_timeout,
            say=say,
        )
    except LaunchError as error:
        typer.echo(f"tfdp run: {error}", err=True)
        raise typer.Exit(2) from None
    say(report(result))
    # After a signal nobody may be there to read.
    messages.drain(give_up=give_up_after(1.0 if result.signal_number else float("inf")))
    raise typer.Exit(result.exit_status)


@app.command()
def env(
    num_workers: Annotated[
        int, typer.Option("--num-workers", "-n", min=1, help="Workers that share this machine.")
    ] = 1,
) -> None:
    """Print the settings that make workers fast, which must be in their environment before they start.

    What you set yourself is kept. tfdp run sets them itself; this is for other launchers:

    env $(tfdp env) python train.py
    """
    settings = worker_settings.fast_settings(
        num_workers=num_workers,
        num_cores=worker_settings.count_cores(),
        gpus_visible=bool(visible_gpus(os.environ)),
        glibc=worker_settings.uses_glibc(),
    )
    for line in worker_settings.printable_settings(worker_settings.settings_in_force(settings, os.environ)):
        typer.echo(line)


app.command()(demo)
app.command()(audit)
app.command()(topology)


if __name__ == "__main__":
    main()
