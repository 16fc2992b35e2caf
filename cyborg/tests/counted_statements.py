# SPDX-License-Identifier: Apache-2.0
"""Statements that a block of a test has run."""

from __future__ import annotations


class SqlCounter:
    """The statements that the block ran, in order."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def matching(self, word: str) -> list[str]:
        """The statements that begin with ``word``."""
        return [text for text in self.statements if text.lstrip().upper().startswith(word)]
