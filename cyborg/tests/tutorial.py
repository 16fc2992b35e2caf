# SPDX-License-Identifier: Apache-2.0
"""A tutorial that is followed from its text, on a machine that has what its page says.

The last section of a page has a field for each name that is another one here, and for each program
that stands in for one.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PAGES = pathlib.Path(__file__).parents[2] / "doc" / "source" / "tutorials"

_FIELD = re.compile(r"^:(``.+?``(?:, ``.+?``)*): (.+)$", re.MULTILINE)
_BLOCK = re.compile(
    r"^\.\. code-block:: (\w+)\n(?:   :caption: (\S+)\n)?\n((?:   .*\n|\n)+)", re.MULTILINE
)
_LITERAL = re.compile(r"``(.+?)``")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A file where it has a name, and commands where it has none."""

    language: str
    file: str
    text: str


class Tutorial:
    """One page; ``names`` and ``programs`` are what the page says to be another one here."""

    def __init__(self, page: str, names: Mapping[str, str]) -> None:
        self.text = (PAGES / f"{page}.rst").read_text()
        declared: dict[str, str] = {}
        for keys, value in _FIELD.findall(self.text):
            declared |= dict.fromkeys(_LITERAL.findall(keys), value)
        self.declared = set(declared)
        assert names.keys() <= self.declared
        literal = {key: found[1] for key, value in declared.items() if (found := _whole(value))}
        self._names = literal | dict(names)

    def blocks(self) -> Iterator[Block]:
        """Those of the page in their order, with the names of here."""
        for language, file, text in _BLOCK.findall(self.text):
            yield Block(
                language=language,
                file=self._translated(file),
                text=self._translated(textwrap.dedent(text)),
            )

    def _translated(self, text: str) -> str:
        for name, mine in self._names.items():
            text = text.replace(name, mine)
        return text


def _whole(value: str) -> re.Match[str] | None:
    return _LITERAL.fullmatch(value)


class Shell:
    """One shell of the reader's, with programs of its own; its folder is its home."""

    def __init__(
        self, folder: pathlib.Path, programs: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, script in programs.items():
            program = folder / "bin" / name
            program.write_text(f"#!/usr/bin/env bash\nset -eu\n{script}\n")
            program.chmod(0o755)
        self._state = folder / "state-of-shell"
        own = {"HOME": str(folder), "PATH": f"{folder}/bin:$PATH", "NO_PROXY": "127.0.0.1"}
        lines = [f'export {name}="{value}"\n' for name, value in {**own, **variables}.items()]
        self._state.write_text("".join(lines))

    def write(self, block: Block) -> pathlib.Path:
        """Write the file that a page shows; whole, or after what it has."""
        path = self.folder / block.file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(block.text)
        return path

    def command(self, text: str) -> list[str]:
        """A command line that runs commands, each of which must do well; variables stay set."""
        begin = f"set -eua\n. {self._state}\ncd {self.folder}\nset -x"
        end = f"{{ set +x; }} 2>/dev/null; export -p > {self._state}"
        return ["bash", "-c", f"{begin}\n{text}\n{end}"]

    def run(self, text: str) -> str:
        """Run commands; what they print."""
        done = subprocess.run(self.command(text), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout
