"""What the workers of `tfdp demo` report, and what follows from it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerReport:
    """How the training went in one worker.

    Attributes:
        rank: of the worker.
        num_replicas: replicas of all workers together.
        num_correct: test examples that the trained model gets right.
        num_test_examples: test examples.
        weights_digest: a hash of all weights of the trained model.
        num_timed_steps: steps that `step_seconds` comes from.
        step_seconds: median time of a step.
        gradient_bytes: dense gradients of one replica in a step.
        sent_bytes: what of them it handed to collectives.
    """

    rank: int
    num_replicas: int
    num_correct: int
    num_test_examples: int
    weights_digest: str
    num_timed_steps: int
    step_seconds: float
    gradient_bytes: int
    sent_bytes: int

    @property
    def accuracy(self) -> float:
        """The share of test examples that the trained model gets right."""
        return self.num_correct / self.num_test_examples


def write_report(folder: Path, report: WorkerReport) -> None:
    """Writes one worker's report to a file of its own in `folder`."""
    _file(folder, report.rank).write_text(json.dumps(asdict(report)), encoding="utf-8")


def read_reports(folder: Path, num_workers: int) -> list[WorkerReport]:
    """Returns the reports of all workers, by rank.

    Raises:
        FileNotFoundError: a worker wrote none.
    """
    files = [_file(folder, rank) for rank in range(num_workers)]
    return [WorkerReport(**json.loads(file.read_text(encoding="utf-8"))) for file in files]


def ranks_that_differ(reports: Sequence[WorkerReport]) -> list[int]:
    """Returns the workers whose weights are not those of worker 0; none where all are equal."""
    return [report.rank for report in reports if report.weights_digest != reports[0].weights_digest]


def _file(folder: Path, rank: int) -> Path:
    return folder / f"report-{rank}.json"
