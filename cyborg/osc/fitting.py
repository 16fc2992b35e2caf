# SPDX-License-Identifier: Apache-2.0
"""Lists that fit the terminal, with every word whole: no uuid is cut in the middle.

A column that does not fit beside those before it is left out. Where the user has chosen the
columns, each row is a small table of its own instead.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import prettytable
from cliff import columns as cliff_columns
from cliff import utils
from cliff.formatters import base

#: A word that is longer than a uuid may be cut.
_WORD_MAX = 36
#: An order to the terminal to change the colour, which takes no room.
_COLOUR = re.compile(r"\x1b\[\d+m")


class Fitted(base.ListFormatter):
    """The table of cliff's formatter, or a narrower one if that is too wide for the terminal."""

    def __init__(self, plain: base.ListFormatter, *, may_drop: bool) -> None:
        self._plain = plain
        self._may_drop = may_drop

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        """Add no option; the plain formatter has added its own."""

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write the list."""
        rows = list(data)
        width = utils.terminal_width()
        cells = [[_text(value) for value in row] for row in rows]
        seen = ([_COLOUR.sub("", cell) for cell in row] for row in cells)
        columns = list(zip(column_names, *seen, strict=True))
        whole, words = list(map(_longest_line, columns)), list(map(_longest_word, columns))
        if parsed_args.max_width > 0 or width is None or not rows or _room(width, whole) >= 0:
            self._plain.emit_list(column_names, rows, stdout, parsed_args)
            return
        kept = _fitting(words, width)
        left_out = [name for number, name in enumerate(column_names) if number not in kept]
        if left_out and not self._may_drop:
            stdout.writelines(f"{_card(column_names, row, width)}\n" for row in cells)
            return
        widths = _widths([words[n] for n in kept], [whole[n] for n in kept], width)
        rows = [[row[number] for number in kept] for row in cells]
        stdout.write(_table([column_names[number] for number in kept], rows, widths) + "\n")
        if left_out:
            text = f"Left out: {', '.join(left_out)}. See --long, -c."
            stdout.write(textwrap.fill(text, width) + "\n")


def _fitting(widths: Sequence[int], width: int) -> list[int]:
    """The columns that fit beside each other: the first, and each other that there is room for."""
    kept = [0]
    for number in range(1, len(widths)):
        if _room(width, [widths[each] for each in (*kept, number)]) >= 0:
            kept.append(number)
    return kept


def _room(width: int, columns: Sequence[int]) -> int:
    """The characters that are left beside columns of these widths; negative if they do not fit."""
    return width - 1 - 3 * len(columns) - sum(columns)


def _card(names: Sequence[str], row: Sequence[str], width: int) -> str:
    """A row as a table of its own."""
    longest = max(map(len, names))
    pairs = list(zip(names, row, strict=True))
    return _table(["Field", "Value"], pairs, [longest, width - 7 - longest])


def _text(value: Any) -> str:
    is_own = isinstance(value, cliff_columns.FormattableColumn)
    return str(value.human_readable() if is_own else value)


def _longest_line(cells: Iterable[str]) -> int:
    return max((len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest_word(cells: Iterable[str]) -> int:
    longest = max((len(word) for cell in cells for word in cell.split()), default=0)
    return min(longest, _WORD_MAX)


def _widths(words: Sequence[int], whole: Sequence[int], width: int) -> list[int]:
    """The width of each column: its longest word, and of what is left as much as the others."""
    widths = list(words)
    while (left := _room(width, widths)) > 0:
        short = [number for number, each in enumerate(widths) if each < whole[number]]
        if not short:
            break
        for number in short[:left]:
            widths[number] += 1
    return widths


def _table(
    names: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> str:
    table = prettytable.PrettyTable(names, align="l")
    table.max_width = dict(zip(names, widths, strict=True))
    table.add_rows([list(row) for row in rows])
    return str(table.get_string())
