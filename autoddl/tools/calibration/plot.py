"""A plot of a fit: measured against predicted seconds, one panel per collective.

1000 pixels wide, as wide as a page shows it: letters are as large there as in its text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

from ...cluster.spec import Cluster  # noqa: E402
from ...plans.report.figure_file import write_figure  # noqa: E402
from .fit import Fit  # noqa: E402

COLUMNS = 3  # of panels


def save_plot(fit: Fit, cluster: Cluster, path: str | Path) -> None:
    """Write a PNG: seconds by message size, dots measured, lines predicted, a colour per shape."""
    kinds = list(dict.fromkeys(r.point.kind for r in fit.residuals))
    shapes = sorted({r.point.shape for r in fit.residuals})
    rows = -(-(len(kinds) + 1) // COLUMNS)  # the last place is the legend's
    figure, panels = pyplot.subplots(
        rows, COLUMNS, figsize=(10, 0.8 + 2.9 * rows), sharex=True, sharey=True, squeeze=False
    )
    every: dict[str, Any] = {}
    colours = pyplot.get_cmap("tab10")
    for panel, kind in zip(panels.flat, kinds, strict=False):
        for index, shape in enumerate(shapes):
            mine = sorted(
                (r for r in fit.residuals if r.point.kind == kind and r.point.shape == shape),
                key=lambda r: r.point.bytes,
            )
            if not mine:
                continue
            sizes = [r.point.bytes for r in mine]
            colour = colours(index % 10)
            panel.loglog(sizes, [r.measured_s for r in mine], "o", color=colour, markersize=4)
            (every[str(shape)],) = panel.loglog(
                sizes, [r.predicted_s for r in mine], "-", color=colour
            )
        panel.set_title(f"{kind}: median error {fit.errors[kind]:.0%}", fontsize=11)
        panel.tick_params(labelbottom=True)
        panel.minorticks_off()  # each takes time to draw
        panel.grid(True, which="major", alpha=0.3)
    for panel in panels.flat[len(kinds) :]:
        panel.axis("off")
    panels.flat[-1].legend(every.values(), every, title="groups (hosts x devices)", loc="center")
    figure.supxlabel("message (bytes)", fontsize=11)
    figure.supylabel("seconds (dots measured, lines predicted)", fontsize=11)
    date = "" if cluster.calibration is None else f", {cluster.calibration.date}"
    figure.suptitle(f"{cluster}: measured against predicted{date}; R2 {fit.r2:.3f}")
    figure.tight_layout()
    write_figure(figure, path)
    pyplot.close(figure)
