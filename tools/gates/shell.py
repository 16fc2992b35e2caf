#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: every shell script passes shellcheck and bashate.

Scripts are found by their first line, so that one without an extension is checked too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PLACES = (".ci", "devstack", "tools")
#: bashate: 100 columns as everywhere else; shellcheck knows better about E042 (local x=$(…)).
BASHATE = ("bashate", "--max-line-length", "100", "--ignore", "E042")
SHELLCHECK = ("shellcheck", "--external-sources", "--severity", "style")


def scripts() -> Iterator[str]:
    """Yield each file under the places that starts with a shell's shebang line."""
    for place in PLACES:
        for path in sorted(Path(place).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            with path.open("rb") as file:
                first = file.readline()
            if first.startswith(b"#!") and first.strip().endswith((b"sh", b"bash")):
                yield str(path)


def main() -> int:
    """Run both tools on all scripts and return the exit status; 0 if neither found anything."""
    names = list(scripts())
    if not names:
        return 0
    return max(
        subprocess.run([*tool, *names], check=False).returncode for tool in (SHELLCHECK, BASHATE)
    )


if __name__ == "__main__":
    sys.exit(main())
