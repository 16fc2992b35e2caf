# SPDX-License-Identifier: Apache-2.0
"""Lists that fit the terminal, with every word whole: no uuid is cut in the middle.

If the columns do not fit beside each other, each row is a small table of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import prettytable
from cliff import columns as cliff_columns
from cliff import utils
from cliff.formatters import base

#: A word that is longer than a uuid may be cut.
_WORD_MAX = 36


class Fitted(base.ListFormatter):
    """The table of cliff's formatter, or a narrower one if that is too wide for the terminal."""

    def __init__(self, plain: base.ListFormatter) -> None:
        self._plain = plain

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
        columns = list(zip(column_names, *cells, strict=True))
        usable = (width or 0) - 1 - 3 * len(columns)
        whole, words = list(map(_longest_line, columns)), list(map(_longest_word, columns))
        if parsed_args.max_width > 0 or width is None or not rows or sum(whole) <= usable:
            self._plain.emit_list(column_names, rows, stdout, parsed_args)
        elif sum(words) <= usable:
            stdout.write(_table(column_names, cells, _widths(words, whole, usable)) + "\n")
        else:
            names = max(map(len, column_names))
            for row in cells:
                pairs = list(zip(column_names, row, strict=True))
                stdout.write(_table(["Field", "Value"], pairs, [names, width - 7 - names]) + "\n")


def _text(value: Any) -> str:
    is_own = isinstance(value, cliff_columns.FormattableColumn)
    return str(value.human_readable() if is_own else value)


def _longest_line(cells: Iterable[str]) -> int:
    return max((len(line) for cell in cells for line in cell.splitlines()), default=0)


def _longest_word(cells: Iterable[str]) -> int:
    longest = max((len(word) for cell in cells for word in cell.split()), default=0)
    return min(longest, _WORD_MAX)


def _widths(words: Sequence[int], whole: Sequence[int], usable: int) -> list[int]:
    """The width of each column: its longest word, and of what is left as much as the others."""
    widths = list(words)
    while left := usable - sum(widths):
        short = [number for number, width in enumerate(widths) if width < whole[number]]
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
