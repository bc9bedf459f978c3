"""The plots of the convergence benchmark: quality by step, a panel for each compressor."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from convergence_figures import UNCOMPRESSED, Measure, Run, error_curve, mean_curve, steps_measured

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NUM_COLUMNS, PANEL_INCHES = 4, (2.6, 1.9)
FIRST_SHOWN = 0.2  # of the measurements without compression: worse quality than there is cut off


def draw(path: Path, measure: Measure, runs_by_name: Mapping[str, Mapping[int, Run]]) -> None:
    """Writes a PNG file: the mean over seeds and a band of two standard errors, training without compression in grey.

    Args:
        path: of the file.
        measure: of the quality.
        runs_by_name: of each compressor, by seed; `UNCOMPRESSED` must be among them.
    """
    names = [name for name in runs_by_name if name != UNCOMPRESSED] or [UNCOMPRESSED]
    num_rows = math.ceil(len(names) / NUM_COLUMNS)
    size = PANEL_INCHES[0] * NUM_COLUMNS, PANEL_INCHES[1] * num_rows + 0.3
    figure, grid = plt.subplots(
        num_rows, NUM_COLUMNS, figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    uncompressed = runs_by_name[UNCOMPRESSED]
    for panel, name in zip(grid.flat, names, strict=False):
        _curve(panel, uncompressed, "0.6")
        _curve(panel, runs_by_name[name], "C0")
        final = mean_curve(runs_by_name[name])[-1]
        panel.set_title(f"{name}: {final:.{measure.decimals}f}", fontsize=9)
        panel.tick_params(labelsize=7)
    for panel in grid.flat[len(names) :]:
        panel.set_axis_off()
    grid[0, 0].set_ylim(*_limits(mean_curve(uncompressed)))
    figure.supxlabel("steps", fontsize=9)
    figure.supylabel(measure.heading, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _curve(panel: Any, runs: Mapping[int, Run], color: str) -> None:
    steps, means, errors = steps_measured(runs), mean_curve(runs), error_curve(runs)
    low, high = ([m + sign * 2 * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
    panel.fill_between(steps, low, high, color=color, alpha=0.25, linewidth=0)
    panel.plot(steps, means, color=color, linewidth=1.2)


def _limits(uncompressed: list[float]) -> tuple[float, float]:
    shown = uncompressed[int(FIRST_SHOWN * len(uncompressed)) :]
    padding = 0.08 * (max(shown) - min(shown)) or 1.0
    return min(shown) - padding, max(shown) + padding
