"""What a launch gives back."""

import signal
from dataclasses import dataclass
from pathlib import Path

from tfdp.cli.outcome import Outcome


@dataclass(frozen=True)
class LaunchResult:
    """How a launch went.

    Attributes:
        exit_status: 0 if all workers ended with 0; else that of the first failure, as shells give it, 128 + N if
            signal N ended the launch, or 1 if workers did not come.
        failed_rank: the worker that failed first or did not come, or None.
        seconds: from the start of the workers to the end of the last.
        log_dir: absolute path of the folder with "worker-RANK.log" of every worker.
        outcomes: of every worker, by rank.
        late_ranks: the workers that did not come within the start timeout.
        start_timeout_seconds: that timeout.
        signal_number: the signal that ended the launch, or None.
    """

    exit_status: int
    failed_rank: int | None
    seconds: float
    log_dir: Path
    outcomes: tuple[Outcome, ...]
    late_ranks: tuple[int, ...] = ()
    start_timeout_seconds: float = 0.0
    signal_number: int | None = None

    @property
    def signal_name(self) -> str:
        """The name of the signal that ended the launch, or ""."""
        return signal.Signals(self.signal_number).name if self.signal_number else ""
