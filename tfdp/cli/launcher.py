"""Starts the workers of a cluster on this machine, watches them and ends them together."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import get_args

from tfdp.cli.cluster import check_not_nested, free_ports, worker_environment
from tfdp.cli.command import check_program
from tfdp.cli.crew import Crew, Show
from tfdp.cli.devices import check_gpus, visible_gpus
from tfdp.cli.environment import count_cores, fast_settings, uses_glibc
from tfdp.cli.errors import LaunchError
from tfdp.cli.logs import make_log_dir
from tfdp.cli.outcome import Outcome, exit_status, first_failure
from tfdp.cli.report import others_in_words, workers_in_words
from tfdp.cli.result import LaunchResult
from tfdp.cli.screen import give_up_after
from tfdp.cli.signals import caught_signals
from tfdp.cli.start_timeout import StartWatch

# The peers of a worker that fails fail soon after it: who was first is asked when all have had the time to.
SETTLE_SECONDS = 1.0


def launch(
    command: Sequence[str],
    *,
    num_workers: int,
    devices_per_worker: int | None = None,
    show: Show = "chief",
    log_dir: Path | str | None = None,
    grace_seconds: float = 5.0,
    start_timeout_seconds: float = 60.0,
    environment: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> LaunchResult:
    """Runs `command` in every worker of a cluster on this machine, and returns when the last has ended.

    When a worker fails, a signal (SIGINT, SIGTERM, SIGHUP) comes or workers do not come in time, all are ended, with
    everything that they started: by SIGTERM or the signal that came, and after the grace by SIGKILL. A second signal
    kills at once. Called from another thread than the main one, it leaves signals to that.

    Args:
        command: the program and its arguments (see `tfdp.cli.command`).
        num_workers: size of the cluster.
        devices_per_worker: devices of each worker. Where there are NVIDIA GPUs, each worker sees that many of its own.
        show: whose output is copied to `sys.stdout`: the chief's as it comes, that of all in lines with the rank in
            front, or none.
        log_dir: folder for the output of every worker; None makes a fresh one in `tfdp-logs` of the current folder.
        grace_seconds: how long workers may take to end when asked to.
        start_timeout_seconds: how long they may wait for each other to make their strategies.
        environment: of the workers, before what this adds; None takes that of this process.
        say: is given lines that tell what goes on, such as why workers are ended.

    Raises:
        LaunchError: nothing was left running, because what is asked for cannot be started.

    Example:
        >>> launch(["python", "train.py"], num_workers=2).exit_status  # doctest: +SKIP
        0
    """
    environment = dict(os.environ if environment is None else environment)
    say = say or (lambda text: None)
    _check_options(num_workers, devices_per_worker, show, grace_seconds, start_timeout_seconds)
    if not command:
        raise LaunchError("`command` must name a program to run. Received: command=[].")
    check_not_nested(environment)
    check_program(command[0], environment)
    gpus = visible_gpus(environment)
    check_gpus(gpus, num_workers=num_workers, devices_per_worker=devices_per_worker)
    if gpus and num_workers > 1 and devices_per_worker is None:
        say(
            f"tfdp run: {num_workers} workers share {len(gpus)} GPUs and may run out of their memory. Give each its "
            "own with `--devices-per-worker`."
        )
    settings = fast_settings(
        num_workers=num_workers, num_cores=count_cores(), gpus_visible=bool(gpus), glibc=uses_glibc()
    )
    folder = make_log_dir(Path(log_dir) if log_dir is not None else None)
    starts = StartWatch(folder, num_workers, start_timeout_seconds)
    ports = _ports(num_workers)
    environments = [
        worker_environment(
            environment,
            rank=rank,
            ports=ports,
            gpus=gpus,
            devices_per_worker=devices_per_worker,
            settings=settings,
            start_timeout_seconds=start_timeout_seconds,
            log_dir=folder,
        )
        for rank in range(num_workers)
    ]
    crew = Crew(show, sys.stdout, say)
    with caught_signals() as signals:
        try:
            crew.start(command, environments, folder)
            end = _wait_for_an_end(crew, signals, starts)
            if crew.running:
                crew.say(end.announcement(crew.num_running))
            crew.end(end.signal_number or SIGTERM, grace_seconds, signals)
        finally:
            crew.kill()
            outcomes = crew.outcomes()
            crew.close(signals)
            starts.clear()
    return LaunchResult(
        exit_status=end.exit_status,
        failed_rank=end.failed_rank,
        seconds=max(outcome.seconds for outcome in outcomes),
        log_dir=folder,
        outcomes=outcomes,
        late_ranks=end.late_ranks,
        start_timeout_seconds=start_timeout_seconds,
        signal_number=end.signal_number,
    )


@dataclass(frozen=True)
class _End:
    """Why a launch ends: a signal, late workers, a failure, or because all have ended.

    Attributes:
        outcomes: how the workers ended, before any was made to.
        signal_number: the signal that ends the launch.
        late_ranks: the workers that did not come in time.
    """

    outcomes: tuple[Outcome, ...]
    signal_number: int | None = None
    late_ranks: tuple[int, ...] = ()

    @property
    def exit_status(self) -> int:
        if self.signal_number:
            return 128 + self.signal_number
        return 1 if self.late_ranks else exit_status(self.outcomes)

    @property
    def failed_rank(self) -> int | None:
        if self.late_ranks:
            return self.late_ranks[0]
        failure = None if self.signal_number else first_failure(self.outcomes)
        return failure.rank if failure else None

    def announcement(self, num_running: int) -> str:
        if self.signal_number:
            return f"tfdp run: ending {workers_in_words(num_running)}; a second signal kills them at once."
        if self.late_ranks:
            return f"tfdp run: not all workers came; ending {workers_in_words(num_running)}."
        failure = first_failure(self.outcomes)
        assert failure is not None  # nothing else ends a launch whose workers run
        return f"tfdp run: worker {failure.rank} failed ({failure}); ending {others_in_words(num_running)}."


def _wait_for_an_end(crew: Crew, signals: Sequence[int], starts: StartWatch) -> _End:
    late: tuple[int, ...] = ()
    while crew.running and not signals and not crew.any_failed and not late:
        crew.turn()
        late = starts.late()
    settled = give_up_after(SETTLE_SECONDS)
    while crew.running and not signals and crew.any_failed and not settled():
        crew.turn()
    outcomes = crew.outcomes()
    if crew.any_failed:
        late = ()
    return _End(outcomes, _ending_signal(signals, first_failure(outcomes), running=crew.running and not late), late)


def _ending_signal(signals: Sequence[int], failure: Outcome | None, *, running: bool) -> int | None:
    """Returns the signal that ends the launch, or None where it ends for another reason.

    A signal that a scheduler sends to all processes may reach workers before it reaches the launcher: a worker that
    dies of it has not failed.
    """
    if not signals or (failure and failure.exit_code != -signals[0]):
        return None
    return signals[0] if running or failure else None


def _check_options(
    num_workers: int,
    devices_per_worker: int | None,
    show: str,
    grace_seconds: float,
    start_timeout_seconds: float,
) -> None:
    if not num_workers >= 1:
        raise LaunchError(f"The number of workers must be at least 1. Received: {num_workers}.")
    if devices_per_worker is not None and not devices_per_worker >= 1:
        raise LaunchError(f"The number of devices of a worker must be at least 1. Received: {devices_per_worker}.")
    if show not in get_args(Show):
        raise LaunchError(f"`show` must be one of {', '.join(get_args(Show))}. Received: show={show!r}.")
    if not grace_seconds >= 0:  # not NaN either
        raise LaunchError(f"The grace must be 0 seconds or more. Received: {grace_seconds}.")
    if not start_timeout_seconds > 0:
        raise LaunchError(f"The start timeout must be above 0 seconds. Received: {start_timeout_seconds}.")


def _ports(num_ports: int) -> tuple[int, ...]:
    try:
        return free_ports(num_ports)
    except OSError as error:
        raise LaunchError(
            f"{workers_in_words(num_ports)} need a free port each. Received: {error} while looking. Start fewer."
        ) from error
