# SPDX-License-Identifier: Apache-2.0
"""What fake FPGAs run: in files, which survive the agent as an FPGA does, or else in memory."""

from __future__ import annotations

import json
import pathlib
import urllib.parse

from cyborg.drivers import base, checks

#: How much of a bitstream is read for its header.
_HEADER_MAX = 4096


class Memory:
    """The function that each deployable runs, by its name; empty where it runs none."""

    def __init__(self, state_dir: str | None) -> None:
        self._folder = pathlib.Path(state_dir) if state_dir else None
        self._here: dict[str, str] = {}

    def loaded(self, deployable: str) -> str:
        """The id of the function that is loaded."""
        if self._folder is None:
            return self._here.get(deployable, "")
        try:
            return self._path(self._folder, deployable).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def load(self, deployable: str, function: str) -> None:
        """Write a function, or erase what is there by an empty one."""
        if self._folder is None:
            self._here[deployable] = function
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(self._folder, deployable)
        draft = path.with_name(f"{path.name}.new")
        draft.write_text(function, encoding="utf-8")
        draft.replace(path)

    def _path(self, folder: pathlib.Path, deployable: str) -> pathlib.Path:
        return folder / f"{urllib.parse.quote(deployable, safe='')}.function"


def function_of(bitstream: pathlib.Path) -> str:
    """The function that a bitstream of the fake FPGA names in the JSON object it begins with.

    :raises cyborg.drivers.base.NothingWritten: it is no such bitstream
    """
    with bitstream.open("rb") as file:
        header = file.read(_HEADER_MAX).decode("utf-8", "replace")
    try:
        said, _end = json.JSONDecoder().raw_decode(header)
        function = said["function"]
        checks.function_id(function)
    except (KeyError, TypeError, ValueError) as exc:
        raise base.NothingWritten(f"This is no bitstream of the fake FPGA: {exc}") from exc
    return str(function)
