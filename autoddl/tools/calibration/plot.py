"""A plot of a fit: measured against predicted seconds, one panel per collective."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

from ...cluster.spec import Cluster  # noqa: E402
from .fit import Fit  # noqa: E402


def save_plot(fit: Fit, cluster: Cluster, path: str | Path) -> None:
    """Write a PNG: seconds by message size, dots measured, lines predicted, a colour per shape."""
    kinds = list(dict.fromkeys(r.point.kind for r in fit.residuals))
    shapes = sorted({r.point.shape for r in fit.residuals})
    figure, panels = pyplot.subplots(
        1, len(kinds), figsize=(4.2 * len(kinds), 4.4), sharey=True, squeeze=False
    )
    colours = pyplot.get_cmap("tab10")
    for panel, kind in zip(panels[0], kinds, strict=True):
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
            panel.loglog(sizes, [r.predicted_s for r in mine], "-", color=colour, label=str(shape))
        panel.set_title(f"{kind}: median error {fit.errors[kind]:.0%}")
        panel.set_xlabel("message (bytes)")
        panel.minorticks_off()  # each takes time to draw
        panel.grid(True, which="major", alpha=0.3)
    panels[0][0].set_ylabel("seconds (dots measured, lines predicted)")
    panels[0][-1].legend(title="groups (nodes x GPUs)", fontsize=7)
    date = "" if cluster.calibration is None else f", {cluster.calibration.date}"
    figure.suptitle(f"{cluster}: measured against predicted{date}; R2 {fit.r2:.3f}")
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
