"""What the convergence benchmark makes of its runs: how much quality compression costs, how many steps and seconds."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

UNCOMPRESSED = "none"
TARGET_SHARE = 0.8  # of the uncompressed steps: where the quality that all are to reach is read off
LINKS = {"200mbit": 200e6, "1gbit": 1e9}  # bits per second


class Measure(NamedTuple):
    """A quality, and how much of it compression may cost.

    Attributes:
        heading: its name, with its unit.
        rises: whether more is better.
        decimals: to show of it.
        cost: (quality, that without compression) -> what is lost, in `unit`.
        unit: of a cost.
        words: a sentence's part about a cost.
        margin: the largest cost that the rule allows ..
        num_errors: .. beside so many standard errors of the cost.
        bound: the names of compressors that the rule binds; none of them for all.
    """

    heading: str
    rises: bool
    decimals: int
    cost: Callable[[float, float], float]
    unit: str
    words: str
    margin: float
    num_errors: float
    bound: tuple[str, ...] = ()


MEASURES = {
    "accuracy": Measure(
        "accuracy, %",
        rises=True,
        decimals=2,
        cost=lambda quality, uncompressed: uncompressed - quality,
        unit="points",
        words="loses {} points of accuracy",
        margin=0.5,
        num_errors=2.0,
    ),
    "loss": Measure(
        "validation loss",
        rises=False,
        decimals=4,
        cost=lambda quality, uncompressed: 100 * (quality / uncompressed - 1),
        unit="%",
        words="ends with a loss {} % higher",
        margin=2.0,
        num_errors=0.0,
        bound=("bf16", "int8", "powersgd:4", "topk:0.01"),
    ),
}


class Run(NamedTuple):
    """A training from one seed.

    Attributes:
        steps: after which quality was measured, ascending.
        quality: after each of them.
        wire_bytes: that one of two hosts sends in a step.
    """

    steps: Sequence[int]
    quality: Sequence[float]
    wire_bytes: int


class Row(NamedTuple):
    """What one compressor gives; means over seeds, with their standard errors.

    Attributes:
        name: of the compressor.
        num_seeds: that were trained.
        quality: after the last step.
        quality_error: of it.
        cost: what is lost of the quality without compression, over seeds that both have.
        cost_error: of it.
        allowed: the largest cost that passes.
        verdict: "pass", "fail", or "no rule".
        steps_to_target: the steps to the target quality; None where it is not reached.
        wire_bytes: that one of two hosts sends in a step.
        seconds: an estimate of the seconds to the target quality, by link; None where it is not reached.
    """

    name: str
    num_seeds: int
    quality: float
    quality_error: float
    cost: float
    cost_error: float
    allowed: float
    verdict: str
    steps_to_target: int | None
    wire_bytes: int
    seconds: dict[str, float | None]


class Comparison(NamedTuple):
    """All compressors on one workload.

    Attributes:
        measure: of the quality.
        target: the quality to reach.
        num_steps: of a training.
        arithmetic_seconds: of a step without compression and without a network.
        rows: by compressor, the uncompressed one first.
    """

    measure: Measure
    target: float
    num_steps: int
    arithmetic_seconds: float
    rows: list[Row]


def standard_error(values: Sequence[float]) -> float:
    """Returns the standard error of the mean of `values`, 0 for one value."""
    if len(values) == 1:
        return 0.0
    return math.sqrt(statistics.variance(values) / len(values)) if all(map(math.isfinite, values)) else math.nan


def mean_curve(runs: Mapping[int, Run]) -> list[float]:
    """Returns the mean quality over seeds after each measured step."""
    return [statistics.fmean(values) for values in zip(*(run.quality for run in runs.values()), strict=True)]


def error_curve(runs: Mapping[int, Run]) -> list[float]:
    """Returns the standard errors of `mean_curve`."""
    return [standard_error(values) for values in zip(*(run.quality for run in runs.values()), strict=True)]


def steps_measured(runs: Mapping[int, Run]) -> Sequence[int]:
    """Returns the steps after which all runs measured their quality."""
    return next(iter(runs.values())).steps


def reference_quality(runs: Mapping[int, Run]) -> float:
    """Returns the mean quality at `TARGET_SHARE` of the steps, at the first measurement that is not before."""
    steps = steps_measured(runs)
    return next(q for step, q in zip(steps, mean_curve(runs), strict=True) if step >= TARGET_SHARE * steps[-1])


def target_quality(measure: Measure, reference: float) -> float:
    """Returns the quality that costs `measure.margin` beside the reference."""
    return reference - measure.margin if measure.rises else reference * (1 + measure.margin / 100)


def steps_to(target: float, steps: Sequence[int], curve: Sequence[float], *, rises: bool) -> int | None:
    """Returns the first step at which `curve`, straight between its points, is at `target`; None where it never is."""
    for index, (step, quality) in enumerate(zip(steps, curve, strict=True)):
        if not (quality >= target if rises else quality <= target):
            continue
        if index == 0 or not math.isfinite(curve[index - 1]):
            return step
        before = curve[index - 1]
        share = (target - before) / (quality - before)
        return math.ceil(steps[index - 1] + share * (step - steps[index - 1]))
    return None


def estimated_seconds(steps: int, arithmetic_seconds: float, wire_bytes: int, bits_per_second: float) -> float:
    """Returns the seconds of `steps` in which nothing overlaps, compressing costs nothing, and messages start at once.

    Args:
        steps: to make.
        arithmetic_seconds: of a step.
        wire_bytes: that a host sends in a step.
        bits_per_second: of its link.
    """
    return steps * (arithmetic_seconds + 8 * wire_bytes / bits_per_second)


def compare(measure: Measure, runs_by_name: Mapping[str, Mapping[int, Run]], arithmetic_seconds: float) -> Comparison:
    """Returns what compressors give beside training without compression.

    Args:
        measure: of the quality.
        runs_by_name: of each compressor, by seed; `UNCOMPRESSED` must be among them.
        arithmetic_seconds: of a step without compression and without a network.
    """
    uncompressed = runs_by_name[UNCOMPRESSED]
    target = target_quality(measure, reference_quality(uncompressed))
    names = [UNCOMPRESSED, *(name for name in runs_by_name if name != UNCOMPRESSED)]
    rows = [_row(measure, name, runs_by_name[name], uncompressed, target, arithmetic_seconds) for name in names]
    return Comparison(measure, target, steps_measured(uncompressed)[-1], arithmetic_seconds, rows)


def _row(
    measure: Measure,
    name: str,
    runs: Mapping[int, Run],
    uncompressed: Mapping[int, Run],
    target: float,
    arithmetic_seconds: float,
) -> Row:
    last = [run.quality[-1] for run in runs.values()]
    seeds = sorted(runs.keys() & uncompressed.keys())
    costs = [measure.cost(runs[seed].quality[-1], uncompressed[seed].quality[-1]) for seed in seeds]
    cost, cost_error = statistics.fmean(costs), standard_error(costs)
    allowed = measure.margin + measure.num_errors * cost_error
    if name == UNCOMPRESSED or (measure.bound and name not in measure.bound):
        verdict = "no rule"
    else:
        verdict = "pass" if cost <= allowed else "fail"  # NaN fails
    steps = steps_to(target, steps_measured(runs), mean_curve(runs), rises=measure.rises)
    wire_bytes = next(iter(runs.values())).wire_bytes
    seconds = {
        link: None if steps is None else estimated_seconds(steps, arithmetic_seconds, wire_bytes, bits_per_second)
        for link, bits_per_second in LINKS.items()
    }
    quality, quality_error = statistics.fmean(last), standard_error(last)
    return Row(
        name,
        len(runs),
        quality,
        quality_error,
        cost,
        cost_error,
        allowed,
        verdict,
        steps,
        wire_bytes,
        seconds,
    )
