#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: one migration until the first release is tagged, and none is changed after its release.

Run in the repository, with its tags.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FIRST = "18.0.0"
VERSIONS = Path("cyborg/db/migrations/versions")


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints."""
    done = subprocess.run(["git", *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


def breaches() -> Iterator[str]:
    """Yield a sentence for each migration that should not be, or not be changed."""
    released = git("tag", "--merged", "HEAD", "--list", "[0-9]*")
    if FIRST not in released:
        there = sorted(each.name for each in VERSIONS.glob("*.py") if each.name != "__init__.py")
        if len(there) != 1:
            yield (
                f"{FIRST} is not released, or its tag is not here (git fetch --tags): amend its "
                f"migration, instead of {', '.join(there)}"
            )
        return
    for tag in released:
        for name in git("diff", "--name-only", "--diff-filter=MDR", tag, "--", str(VERSIONS)):
            yield f"{name} was released with {tag}: leave it, and add another migration"


def main() -> int:
    """Print every breach; return 1 if there is any."""
    if not Path(".git").exists():
        print("This is an archive: it has no tags to look at.")
        return 0
    found = list(breaches())
    for sentence in found:
        print(sentence)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
