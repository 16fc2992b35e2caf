# SPDX-License-Identifier: Apache-2.0
"""Blocks of the page that installs a controller may be run again, in another shell too."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess

import pytest

from cyborg.tests.bare_machine import sections

BLOCKS = sections("install/controller")
#: Stands in for a cloud: it keeps endpoints, and users with their passwords.
PROGRAMS = {
    "openstack": """
case "$1 $2" in
"endpoint list") grep -F -- "$8 " "$CLOUD/endpoints" | cut -d' ' -f2 ;;
"endpoint create") echo "$6 $7" >> "$CLOUD/endpoints" ;;
"user set") echo "$4" > "$CLOUD/keystone-user" ;;
esac
""",
    "mariadb": """
while read -r line; do
    case "$line" in "ALTER USER"*) echo "$line" > "$CLOUD/mariadb-user" ;; esac
done
""",
}


class Shells:
    """New shells, each of which runs some sections of the page."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder, self.passwords = folder, folder / "passwords"
        (folder / "endpoints").touch()
        for name, text in PROGRAMS.items():
            program = folder / name
            program.write_text(f"#!/bin/sh\n{text}")
            program.chmod(0o755)

    def run(self, *titles: str) -> str:
        """What they leave as passwords."""
        blocks = [block for title in titles for block in BLOCKS[title]]
        script = "\n".join([*blocks, "echo $DB_PASS $RABBIT_PASS $SERVICE_PASS"])
        script = script.replace("/etc/cyborg-passwords", str(self.passwords))
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-euc", script],
            env={"PATH": path, "CLOUD": str(self.folder)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout


@pytest.fixture
def shells(tmp_path: pathlib.Path) -> Shells:
    return Shells(tmp_path)


def test_passwords_are_made_once_and_kept_for_root_alone(shells: Shells) -> None:
    first = shells.run("Names and passwords")
    assert len(set(first.split())) == 3
    assert stat.S_IMODE(shells.passwords.stat().st_mode) == 0o600
    assert shells.run("Names and passwords") == first
    shells.passwords.unlink()
    assert shells.run("Names and passwords") != first


def test_users_have_the_passwords_of_now(shells: Shells) -> None:
    for _ in range(2):
        database, _broker, service = shells.run(
            "Names and passwords", "The database", "Keystone"
        ).split()
        assert database in (shells.folder / "mariadb-user").read_text()
        assert service in (shells.folder / "keystone-user").read_text()
        shells.passwords.unlink()


def test_endpoints_are_made_once(shells: Shells) -> None:
    for _ in range(3):
        shells.run("Names and passwords", "Keystone")
    made = (shells.folder / "endpoints").read_text().split()
    assert made[::2] == ["public", "internal", "admin"]
