#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gate: each commit says in its subject what it does: ``area: do something``, in 72 characters."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

#: Subjects after this commit are looked at. A shallow clone may not have it: then all that it has.
BASE = "ea752d321350ff3b6e7e93fda2f4e137d0843458"
MAX_LENGTH = 72

_AREA = r"[a-z][\w./-]*"
_SUBJECT = re.compile(rf"{_AREA}(?:, {_AREA})*: (?P<verb>\S+)(?P<rest>.*)")
#: What does not begin an order: "fixes", "fixed", "fixing", "the fix".
_NO_VERB = re.compile(r"[^a-z].*|an?|the|new|more|wip|\w+(?:[^s]s|[^e]ed|ing)")
#: Verbs that look like one of these.
_VERBS = frozenset({"bring", "embed", "focus", "shed"})


def breach(subject: str) -> str | None:
    """Return what is wrong with a subject, or None."""
    if len(subject) > MAX_LENGTH:
        return f"has {len(subject)} characters, at most {MAX_LENGTH}"
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        return "is not of the form 'area: what'"
    verb = match["verb"]
    if verb not in _VERBS and _NO_VERB.fullmatch(verb):
        return f"does not begin with a verb that orders, but with '{verb}'"
    if not re.search(r"\w{2}", match["rest"]):
        return "does not say to what that is done"
    return "ends with a full stop" if subject.endswith(".") else None


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def is_in_the_clone(commit: str) -> bool:
    """Return whether the clone has the commit."""
    command = ["git", "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def subjects(base: str) -> list[list[str]]:
    """Return the short name and the subject of each commit after the base, but for merges."""
    if is_in_the_clone(base):
        commits = f"{base}..HEAD"
    elif git("rev-parse", "--is-shallow-repository").strip() == "true":
        commits = "HEAD"
    else:
        sys.exit(f"There is no commit {base} here: name another base in {__file__}.")
    lines = git("log", "--no-merges", "--format=%h %s", commits).splitlines()
    return [line.split(" ", 1) for line in lines]


def main() -> int:
    """Print each breach; exit status 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", nargs="?", default=BASE)
    base = parser.parse_args().base
    if not Path(".git").exists():
        print("This is an archive: it has no commits to look at.")
        return 0
    found = [(name, text, wrong) for name, text in subjects(base) if (wrong := breach(text))]
    for name, text, wrong in found:
        print(f"commit {name}: the subject {wrong}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
