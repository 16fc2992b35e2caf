# SPDX-License-Identifier: Apache-2.0
"""Draw the first steps of the quickstart as a terminal, for the README.

Run it when what the quickstart prints has changed::

    python tools/quickstart.py --once | python tools/draw_terminal.py
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from xml.sax import saxutils

PICTURE = pathlib.Path(__file__).parents[1] / "doc" / "source" / "quickstart.svg"

#: The step that is not drawn any more: from there on each run prints UUIDs of its own.
_END = "\n4. "
_ROW, _COLUMN, _MARGIN, _BAR = 18, 7.5, 16, 30
_WIDTH = 640
_COMMAND, _HEADING, _OUTPUT = "#9ece6a", "#7dcfff", "#c0caf5"

_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"
 aria-label="Terminal: {label}">
<rect width="{width}" height="{height}" rx="8" fill="#1a1b26"/>
<circle cx="20" cy="16" r="6" fill="#f7768e"/><circle cx="40" cy="16" r="6" fill="#e0af68"/>
<circle cx="60" cy="16" r="6" fill="#9ece6a"/>
<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12.5">
"""


def draw(printed: str) -> str:
    """The picture of what the quickstart has printed."""
    lines = printed.partition(_END)[0].strip().splitlines()
    height = _BAR + _ROW * len(lines) + _MARGIN
    label = "the first steps of tools/quickstart.sh"
    return _HEAD.format(width=_WIDTH, height=height, label=label) + "".join(_rows(lines)) + _TAIL


_TAIL = "</g>\n</svg>\n"


def _rows(lines: list[str]) -> Iterator[str]:
    is_command = False
    for number, line in enumerate(lines, 1):
        text = line.strip()
        is_command = text.startswith("$ ") or (is_command and not text.startswith("+"))
        colour = _COMMAND if is_command else _HEADING if line[:1].isdigit() else _OUTPUT
        is_command = is_command and line.endswith("\\")
        if text:
            indent = len(line) - len(line.lstrip())
            x, y = _MARGIN + _COLUMN * indent, _BAR + _ROW * number
            # Of several plain spaces a browser shows one.
            shown = saxutils.escape(text).replace(" ", "\N{NO-BREAK SPACE}")
            yield f'<text x="{x:g}" y="{y}" fill="{colour}">{shown}</text>\n'


def main() -> None:
    """Draw what comes by the standard input."""
    PICTURE.write_text(draw(sys.stdin.read()))


if __name__ == "__main__":
    main()
