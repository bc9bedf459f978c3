"""The words and tables of the convergence benchmark."""

import math

from convergence_figures import LINKS, UNCOMPRESSED, Comparison, Row

BEGIN, END = "<!-- what `make convergence` writes -->", "<!-- the end of it -->"
NEEDS_MORE = 1.1  # times the steps of the uncompressed training: fewer are not told from chance


def table(comparison: Comparison) -> str:
    """Returns a Markdown table with a row for each compressor."""
    measure = comparison.measure
    target = f"{comparison.target:.{measure.decimals}f}"
    headings = [
        "compression",
        "seeds",
        measure.heading,
        f"lost, {measure.unit}",
        "rule",
        f"steps to {target}",
        "bytes a step",
        *(f"s at {link}" for link in LINKS),
    ]
    lines = [headings, ["---"] * len(headings), *(_cells(row, comparison) for row in comparison.rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def sentences(workload: str, comparison: Comparison) -> list[str]:
    """Returns a sentence for each compressor that loses quality or needs more steps than training without it."""
    return [text for row in comparison.rows if (text := _sentence(workload, row, comparison))]


def section(workload: str, comparison: Comparison, notes: list[str], image: str | None) -> str:
    """Returns the part of the page about a workload.

    Args:
        workload: its name.
        comparison: of all compressors on it.
        notes: what else to say.
        image: the path of its plot, from the page.
    """
    lost = sentences(workload, comparison) or [
        f"On the {workload} no compressor loses more than the rule allows, and none needs more than {NEEDS_MORE} times "
        f"the steps of `{UNCOMPRESSED}`."
    ]
    parts = [
        f"## {workload.capitalize()}",
        table(comparison),
        f"{comparison.num_steps} steps; {1e3 * comparison.arithmetic_seconds:.1f} ms of arithmetic a step.",
        "\n".join(f"- {text}" for text in [*lost, *notes]),
    ]
    if image:
        parts.append(f"![quality by step on the {workload}]({image})")
    return "\n\n".join(parts)


def with_generated(page: str, generated: str) -> str:
    """Returns `page` with `generated` between its two markers, in place of what is there.

    Raises:
        ValueError: the markers are not there, once each and in their order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise ValueError(f"The page must hold {BEGIN!r} and then {END!r}, once each.")
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{after}"


def _cells(row: Row, comparison: Comparison) -> list[str]:
    decimals = comparison.measure.decimals
    is_reference = row.name == UNCOMPRESSED
    return [
        f"`{row.name}`",
        str(row.num_seeds),
        _with_error(row.quality, row.quality_error, decimals),
        "" if is_reference else _with_error(row.cost, row.cost_error, 2),
        "" if is_reference else {"fail": "**fail**"}.get(row.verdict, row.verdict),
        "not reached" if row.steps_to_target is None else str(row.steps_to_target),
        f"{row.wire_bytes:,}",
        *("" if seconds is None else f"{seconds:.2f}" for seconds in row.seconds.values()),
    ]


def _sentence(workload: str, row: Row, comparison: Comparison) -> str:
    measure, uncompressed = comparison.measure, comparison.rows[0].steps_to_target
    losses = []
    if not math.isfinite(row.cost):
        losses.append("diverges")
    elif row.verdict == "fail" or (row.verdict == "no rule" and row.cost > row.allowed):
        others = "" if row.verdict == "fail" else " to those that it binds"
        cost = measure.words.format(_with_error(row.cost, row.cost_error, 2))
        losses.append(f"{cost}, more than the {row.allowed:.2f} that the rule allows{others}")
    if row.steps_to_target is None:
        losses.append(f"does not reach {comparison.target:.{measure.decimals}f} in {comparison.num_steps} steps")
    elif uncompressed is not None and row.steps_to_target > NEEDS_MORE * uncompressed:
        times = row.steps_to_target / uncompressed
        losses.append(f"needs {times:.2f} times the steps of `{UNCOMPRESSED}`")
    return f"`{row.name}` on the {workload}: {', and '.join(losses)}." if losses else ""


def _with_error(value: float, error: float, decimals: int) -> str:
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"
