# SPDX-License-Identifier: Apache-2.0
"""What compare.py reads of processes and of the database server, and the table it makes of it."""

from __future__ import annotations

import os
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_PROC = pathlib.Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for parent in found:
        for task in (_PROC / str(parent) / "task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def named(command: str) -> list[int]:
    """The processes of a command, by the name that the kernel has (15 characters)."""
    names = _PROC.glob("[0-9]*/comm")
    return [int(path.parent.name) for path in names if _text(path).strip() == command]


def cpu(pids: Iterable[int]) -> float:
    """Seconds of processor time that processes have used, ended and awaited children included."""
    total = 0
    for pid in pids:
        # After the name, which is in brackets: utime, stime, cutime and cstime are 14 to 17.
        fields = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def pss(pids: Iterable[int]) -> float:
    """MiB of memory of processes, pages they share counted in parts."""
    total = 0
    for pid in pids:
        lines = _text(_PROC / str(pid) / "smaps_rollup").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _text(path: pathlib.Path) -> str:
    """The file; empty if the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@dataclass(frozen=True)
class Measure:
    """A row of the table: its unit, whether more is better, and by how much we aim to be better."""

    title: str
    unit: str
    rising: bool = False
    #: How many times as good as upstream; None where the aim is a figure of our own.
    ratio: float | None = None
    #: What ours must reach.
    figure: float | None = None


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each measure over the rounds that have it."""
    names = {name: None for one in rounds for name in one}
    return {name: statistics.median(one[name] for one in rounds if name in one) for name in names}


def times_as_good(measure: Measure, ours: float, theirs: float) -> float | None:
    """Above 1 where ours is better; None where it cannot be said."""
    above, below = (ours, theirs) if measure.rising else (theirs, ours)
    return above / below if below else None


def reached(measure: Measure, ours: float, ratio: float | None) -> bool | None:
    """Whether ours has reached the aim; None where there is none, or nothing to compare with."""
    if measure.figure is not None:
        return ours >= measure.figure if measure.rising else ours <= measure.figure
    if measure.ratio is not None and ratio is not None:
        return ratio >= measure.ratio
    return None


def table(
    measures: Mapping[str, Measure],
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    endpoint: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Ours beside upstream, as Markdown; and beside an endpoint, if one was measured."""
    head = ["work", "upstream", "ours", "times as good", "aim", "reached"]
    rows = []
    for name, measure in measures.items():
        if name not in ours and name not in endpoint:
            continue
        own = ours.get(name)
        both = own is not None and name in theirs
        ratio = times_as_good(measure, own, theirs[name]) if both else None
        done = reached(measure, own, ratio) if own is not None else None
        cells = [
            f"{measure.title} ({measure.unit})" if measure.unit else measure.title,
            number(theirs.get(name)),
            number(own),
            number(ratio),
            _aim(measure),
            "" if done is None else "yes" if done else "no",
        ]
        rows.append([*cells, number(endpoint.get(name))] if endpoint else cells)
    marks = ["---", *["--:"] * 4, "---"]
    if endpoint:
        head.append("endpoint")
        marks.append("--:")
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    lines.insert(1, f"|{'|'.join(marks)}|")
    return "\n".join(lines) + "\n"


def rst(text: str) -> str:
    """A Markdown table as reStructuredText."""
    head, _, *rows = [
        [cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines()
    ]
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in [head, *rows]:
        filled = [*cells, *[""] * (len(head) - len(cells))]
        lines += [f"   {'*' if index == 0 else ' '} - {cell}".rstrip()
                  for index, cell in enumerate(filled)]
    return "\n".join(lines) + "\n"


def _aim(measure: Measure) -> str:
    if measure.figure is not None:
        return f"{number(measure.figure)} {measure.unit}".strip()
    return f"{number(measure.ratio)} times" if measure.ratio is not None else ""


def number(value: float | None) -> str:
    """Three digits; a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
