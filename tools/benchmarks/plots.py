# SPDX-License-Identifier: Apache-2.0
"""Curves as PNG files, for those who have matplotlib: see requirements.txt."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

#: Points by the name of their line.
Lines = Mapping[str, Sequence[tuple[float, float]]]


def save(
    path: pathlib.Path, curves: Mapping[str, Lines], x_label: str, *, log: bool = False
) -> None:
    """One drawing below the other, each under its title, with ``x_label`` below the last one."""
    from matplotlib import figure, ticker  # noqa: PLC0415 - only who wants plots needs it

    drawing = figure.Figure(figsize=(8, 2.5 * len(curves)), layout="constrained")
    rows = drawing.subplots(len(curves), sharex=True, squeeze=False)[:, 0]
    for axes, (title, lines) in zip(rows, curves.items(), strict=True):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set_title(title, fontsize="small")
        if log:
            axes.set_xscale("symlog", linthresh=100)
            axes.set_yscale("log")
            # Numbers, not powers of ten: most curves stay between two of these.
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
            axes.yaxis.set_minor_formatter("{x:,.0f}")
        else:
            axes.set_ylim(bottom=0)
        if len(lines) > 1:
            axes.legend()
    rows[-1].set_xlabel(x_label)
    drawing.savefig(path)
