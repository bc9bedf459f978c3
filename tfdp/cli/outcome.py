"""How workers ended: which of them failed first, and the exit status that follows."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

NUM_LAST_LINES = 20
MAX_LINE_CHARACTERS = 400

# What a worker says when it fails because another one did.
_BLAMES_A_PEER = re.compile(
    r"UnavailableError|UNAVAILABLE: |Connection reset by peer|Collective ops is aborted by|"
    r"coordination service|CoordinationService|Socket closed|heartbeat timeout",
    re.IGNORECASE,
)
_TERMINAL_SEQUENCES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")


@dataclass(frozen=True)
class Outcome:
    """How one worker ended.

    Attributes:
        rank: of the worker.
        exit_code: as `subprocess` has it, negative for signals; None while it runs.
        seconds: from the start of all workers to its end, or until now.
        last_lines: the end of its output.
        ended: whether the launcher ended it, so that its exit code says nothing.
    """

    rank: int
    exit_code: int | None
    seconds: float
    last_lines: tuple[str, ...] = ()
    ended: bool = False

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and badly."""
        return not self.ended and self.exit_code not in (0, None)

    def __str__(self) -> str:
        if self.exit_code is None:
            return "still running"
        if self.exit_code >= 0:
            return f"exit status {self.exit_code}"
        name = _signal_name(-self.exit_code)
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"killed by {name}{hint}"


def first_failure(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Returns the failure that most likely caused the others, or None where no worker failed.

    It is the earliest, but a worker that complains of a lost peer follows one that does not: the peers of a worker
    that takes its time to die may be gone before it is. Of workers found dead at one moment, one killed by a signal
    comes first.
    """
    failures = [outcome for outcome in outcomes if outcome.failed]
    return min(failures, key=_order_of_failures, default=None)


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """Returns the exit status of the launch: that of the first failure as shells give it, or 0.

    Example:
        >>> exit_status([Outcome(0, exit_code=1, seconds=5.2), Outcome(1, exit_code=-9, seconds=5.0)])
        137
    """
    failure = first_failure(outcomes)
    return shell_status(failure.exit_code or 0) if failure else 0


def shell_status(exit_code: int) -> int:
    """Returns what shells make of an exit code of `subprocess`: 128 + N for signal N."""
    return 128 - exit_code if exit_code < 0 else exit_code


def last_lines(output: bytes) -> tuple[str, ...]:
    """Returns the last lines of `output` as they would stand on a screen, without what could upset a terminal."""
    lines = [_visible(line) for line in output.decode("utf-8", errors="replace").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return tuple(lines[-NUM_LAST_LINES:])


def _visible(line: str) -> str:
    line = _TERMINAL_SEQUENCES.sub("", line).rstrip("\r\b ").rpartition("\r")[2]
    text = "".join(character for character in line if character.isprintable() or character == "\t")
    return text if len(text) <= MAX_LINE_CHARACTERS else text[:MAX_LINE_CHARACTERS] + " .."


def _order_of_failures(outcome: Outcome) -> tuple[bool, float, bool, int]:
    blames_a_peer = any(_BLAMES_A_PEER.search(line) for line in outcome.last_lines)
    by_signal = (outcome.exit_code or 0) < 0
    return blames_a_peer, outcome.seconds, not by_signal, outcome.rank


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
