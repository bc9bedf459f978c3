"""What `tfdp run` says at its end."""

import os
from collections.abc import Sequence
from pathlib import Path

from tfdp.cli.outcome import Outcome
from tfdp.cli.result import LaunchResult


def report(result: LaunchResult) -> str:
    """Returns the lines that tell how a launch went; the last one sums it up."""
    logs = f"logs in {_path(result.log_dir)}"
    seconds = f"{result.seconds:.1f} s"
    if result.late_ranks:
        return "\n".join([*_late_lines(result), f"tfdp run: not all workers came, ended after {seconds}; {logs}"])
    if result.signal_name:
        workers = workers_in_words(len(result.outcomes))
        return f"tfdp run: ended {workers} after {seconds} on {result.signal_name}; {logs}"
    if result.failed_rank is None:
        return f"tfdp run: {workers_in_words(len(result.outcomes))} finished in {seconds}; {logs}"
    return "\n".join([*_last_lines(result.outcomes[result.failed_rank]), f"tfdp run: {_failures(result)}; {logs}"])


def workers_in_words(num_workers: int) -> str:
    """Returns "1 worker", "2 workers", .."""
    return f"{num_workers} worker" + ("s" if num_workers != 1 else "")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Returns "worker 1" or "workers 1, 2 and 5"."""
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def others_in_words(num_workers: int) -> str:
    """Returns "the other one", "the other 2", .."""
    return "the other one" if num_workers == 1 else f"the other {num_workers}"


def _failures(result: LaunchResult) -> str:
    first = result.outcomes[result.failed_rank or 0]
    others = [outcome for outcome in result.outcomes if outcome.failed and outcome is not first]
    ended = sum(outcome.ended for outcome in result.outcomes)
    parts = [f"worker {first.rank} failed{' first' if others else ''} ({first}) after {first.seconds:.1f} s"]
    parts += [f"worker {outcome.rank} after it ({outcome})" for outcome in others]
    if ended:
        parts.append(f"{others_in_words(ended)} {'was' if ended == 1 else 'were'} ended")
    return ", ".join(parts)


def _late_lines(result: LaunchResult) -> list[str]:
    late = [result.outcomes[rank] for rank in result.late_ranks]
    lines = [line for outcome in late for line in _last_lines(outcome)]
    return [
        *lines,
        "tfdp run: every worker must make its tfdp strategy within the start timeout of the first, "
        f"{result.start_timeout_seconds:g} s. Received: nothing from {ranks_in_words(result.late_ranks)}.",
        "  Look at what they do before it: all workers must make the strategy, none may be held up by a download, a "
        "lock or a debugger. Where it takes that long, raise `--start-timeout`.",
    ]


def _last_lines(outcome: Outcome) -> list[str]:
    if not outcome.last_lines:
        return [f"tfdp run: worker {outcome.rank} printed nothing."]
    return [
        f"tfdp run: the end of the output of worker {outcome.rank}:",
        *(f"  | {line}" for line in outcome.last_lines),
    ]


def _path(path: Path) -> str:
    try:
        relative = os.path.relpath(path)
    except OSError:  # the current folder was removed meanwhile
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative
