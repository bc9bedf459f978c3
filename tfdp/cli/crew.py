"""The workers of one launch and the screen that shows their output."""

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Literal, TextIO

from tfdp.cli.errors import LaunchError
from tfdp.cli.logs import log_file
from tfdp.cli.outcome import Outcome, last_lines
from tfdp.cli.prefix import LinePrefixer
from tfdp.cli.report import workers_in_words
from tfdp.cli.screen import Screen, give_up_after
from tfdp.cli.worker import Worker

Show = Literal["chief", "all", "none"]

TURN_SECONDS = 0.05
TURN_SECONDS_WHEN_FULL = 0.005
# What SIGKILL needs: the kernel may have gigabytes to give back.
KILL_SECONDS = 10.0
# A dead worker's daemon may print for ever; what a pipe holds when its worker dies is less than this.
LAST_READS = 32


class Crew:
    """The workers of a launch, and the screen that shows their output.

    Args:
        show: whose output the screen shows.
        stream: the screen.
        say: is given lines that tell what goes on.
    """

    def __init__(self, show: Show, stream: TextIO | None, say: Callable[[str], None]):
        self._show = show
        self._say = say
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._screen = Screen(stream)
        self._workers: list[Worker] = []
        self._prefixers: dict[int, LinePrefixer] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._started = time.monotonic()
        self._ending = False
        self._said_screen_is_gone = False
        self._said_logs_are_gone = False

    def start(self, command: Sequence[str], environments: Sequence[Mapping[str, str]], log_dir: Path) -> None:
        """Starts a worker for each of `environments`.

        Raises:
            LaunchError: one could not be started; the caller kills those that were.
        """
        colour = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        for rank, environment in enumerate(environments):
            chief_draws = rank == 0 and self._show == "chief" and self._is_terminal
            terminal = self._stream.fileno() if chief_draws and self._stream else None
            try:
                worker = Worker(rank, command, environment, log_file(log_dir, rank), terminal=terminal)
            except OSError as error:
                raise LaunchError(
                    f"This machine must be able to run {workers_in_words(len(environments))}. Received: {error} when "
                    f"starting worker {rank}. Start fewer, or raise the limits (`ulimit -a`)."
                ) from error
            self._workers.append(worker)
            if self._show == "all":
                self._prefixers[rank] = LinePrefixer(rank, colour=colour)

    @property
    def num_running(self) -> int:
        """The number of workers that have not ended."""
        return sum(worker.exit_code is None for worker in self._workers)

    @property
    def running(self) -> bool:
        """Whether any worker has not ended."""
        return self.num_running > 0

    @property
    def any_failed(self) -> bool:
        """Whether any worker ended badly by itself."""
        return any(outcome.failed for outcome in self._outcomes.values())

    def turn(self) -> None:
        """Reads what workers printed, waiting a moment for something to come, and looks which have ended."""
        readers = {
            worker.output: worker for worker in self._workers if worker.output >= 0 and not self._held_up(worker)
        }
        poll = select.poll()
        for descriptor in readers:
            poll.register(descriptor, select.POLLIN)
        seconds = TURN_SECONDS_WHEN_FULL if self._screen.full else TURN_SECONDS
        for descriptor, _ in poll.poll(seconds * 1000):
            self._show_output(readers[descriptor])
        # All that are found dead in one turn count as dead at one moment.
        seconds_now = self._seconds()
        for worker in self._workers:
            worker.follow_window_size()
            if worker.rank not in self._outcomes and worker.poll() is not None:
                self._outcomes[worker.rank] = Outcome(worker.rank, worker.exit_code, seconds_now, ended=self._ending)
                self._show_rest(worker)
        self._say_what_is_gone()

    def outcomes(self) -> tuple[Outcome, ...]:
        """Returns how each worker ended, or that it runs, with the last lines that it printed."""
        running = {worker.rank: Outcome(worker.rank, None, self._seconds()) for worker in self._workers}
        ends = {worker.rank: last_lines(worker.output_end) for worker in self._workers}
        return tuple(
            replace(outcome, last_lines=ends[rank]) for rank, outcome in sorted((running | self._outcomes).items())
        )

    def end(self, number: int, grace_seconds: float, signals: Sequence[int]) -> None:
        """Ends the workers and all that they started, politely at first.

        Args:
            number: the signal that asks them to end.
            grace_seconds: how long they may take.
            signals: grows by each signal to the launcher; one more, and they are killed at once.
        """
        self._ending = True
        num_signals = len(signals)
        for worker in self._workers:
            worker.signal_group(number)
        deadline = time.monotonic() + grace_seconds
        while self._any_group_lives() and time.monotonic() < deadline and len(signals) == num_signals:
            self.turn()
        self.kill()

    def kill(self) -> None:
        """Kills what still runs, and waits until it is gone."""
        self._ending = True
        deadline = time.monotonic() + KILL_SECONDS
        while self._any_group_lives() and time.monotonic() < deadline:
            for worker in self._workers:
                worker.signal_group(SIGKILL)
            self.turn()

    def close(self, signals: Sequence[int]) -> None:
        """Shows the last output and lets go of all files; a signal to the launcher ends the wait for a slow screen."""
        for worker in self._workers:
            self._show_rest(worker)
            if worker.rank in self._prefixers:
                self._screen.write(self._prefixers[worker.rank].finish())
            worker.close()
        self._end_line()
        at_most = give_up_after(1.0)
        self._screen.drain(give_up=lambda: bool(signals) and at_most())
        self._screen.close()

    def say(self, text: str) -> None:
        """Says `text` below what the screen shows."""
        self._end_line()
        self._screen.drain(give_up=give_up_after(0.2))
        self._say(text)

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _any_group_lives(self) -> bool:
        return any(worker.group_lives() for worker in self._workers)

    def _held_up(self, worker: Worker) -> bool:
        return self._screen.full and self._is_shown(worker)

    def _is_shown(self, worker: Worker) -> bool:
        return self._show == "all" or (self._show == "chief" and worker.rank == 0)

    def _show_output(self, worker: Worker) -> int:
        """Reads from a worker, and returns the number of bytes that came."""
        data = worker.read()
        if self._is_shown(worker):
            prefixer = self._prefixers.get(worker.rank)
            self._screen.write(prefixer.feed(data, self._seconds()) if prefixer else data)
        return len(data)

    def _show_rest(self, worker: Worker) -> None:
        """Reads what a dead worker left; the pipe stays open, as something that the worker started may go on."""
        for _ in range(LAST_READS):
            if not self._show_output(worker):
                break

    def _end_line(self) -> None:
        # A progress bar is a line without an end.
        if self._is_terminal and self._screen.in_line:
            self._screen.write(b"\n")

    def _say_what_is_gone(self) -> None:
        if self._screen.error and not self._said_screen_is_gone and not self._ending:
            self._said_screen_is_gone = True
            self._say(f"tfdp run: the output cannot be shown any more ({self._screen.error}). The logs go on.")
        for worker in self._workers:
            if worker.log_error and not self._said_logs_are_gone:
                self._said_logs_are_gone = True
                self._say(f"tfdp run: the log of worker {worker.rank} ends here ({worker.log_error}). Workers go on.")
