# SPDX-License-Identifier: Apache-2.0
"""The commands by which a key gets from a host into the database."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile

import pytest

from cyborg import host_keys
from cyborg.tests import forked, servers, signed

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: pathlib.Path, database_url: str) -> pathlib.Path:
    path = tmp_path / "cyborg.conf"
    (tmp_path / "state").mkdir()
    path.write_text(f"""
[DEFAULT]
transport_url = fake://
host = host-1
state_path = {tmp_path / "state"}
[database]
connection = {database_url}
""")
    return path


def run(config: pathlib.Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(program, "--config-file", str(config), *arguments)


@pytest.mark.usefixtures("database")
def test_a_key_is_shown_enrolled_changed_and_revoked(config: pathlib.Path) -> None:
    def key(*arguments: str) -> str:
        done = run(config, "cyborg-agent", "key", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    def status(code: int, *arguments: str) -> str:
        done = run(config, "cyborg-status", "host", *arguments)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    first = key()
    assert key() == first
    assert "enrolled for host host-1" in status(0, "enroll", "host-1", first)
    following = key("--next")
    status(0, "enroll", "host-1", following)
    assert key("--switch") == following == key()
    (former, present) = host_keys.list_keys("host-1")
    assert "is revoked" in status(0, "revoke", "host-1", former.fingerprint)
    assert status(0, "keys", "host-1").splitlines() == [
        f"{former.fingerprint} revoked {first}",
        f"{present.fingerprint} enrolled {following}",
    ]
    status(0, "enroll", "host-1", following, "--node", "node-1")
    assert "Host host-1 has node node-2." in status(0, "move", "host-1", "node-2")
    assert "Host not found with name=host-3" in status(1, "move", "host-3", "node-2")
    assert "Every key of host host-1 is revoked" in status(0, "revoke", "host-1")
    assert "was revoked" in status(1, "enroll", "host-1", first)
    assert "has no key" in status(1, "revoke", "host-2")
    assert "no Ed25519 public key" in status(1, "enroll", "host-1", "x")
    assert "enroll" in status(2)
    done = run(config, "cyborg-agent", "key", "--switch")
    assert (done.returncode, "No key waits" in done.stderr) == (1, True)


@pytest.mark.usefixtures("database")
def test_a_service_that_needs_keys_and_has_none_says_so(config: pathlib.Path) -> None:
    wrong = config.with_name("wrong.pem")
    wrong.write_text("no key")
    with config.open("a") as file:
        file.write("[agent]\nrequire_host_keys = true\n")
    cases = [
        ("cyborg-agent", "", "require_host_keys needs conductor_public_keys"),
        ("cyborg-agent", "conductor_public_keys = x", "conductor_public_keys: public_key: this is"),
        ("cyborg-conductor", "", "needs [conductor] signing_key_file"),
        ("cyborg-conductor", f"[conductor]\nsigning_key_file = {wrong}", "not the file of a"),
        ("cyborg-conductor", "[conductor]\nsigning_key_file = /none", "No such file"),
    ]
    for program, lines, sentence in cases:
        one = config.with_name("one.conf")
        one.write_text(f"{config.read_text()}{lines}\n")
        done = run(one, program)
        assert (done.returncode, sentence in done.stderr) == (1, True), (program, lines, done)
    # One that cannot write has no key.
    public = signed.new_key(config.with_name("conductor.pem"))
    one.write_text(
        f"{config.read_text()}conductor_public_keys = {public}\n[DEFAULT]\nstate_path = /proc/x\n"
    )
    assert "This host has no key" in run(one, "cyborg-agent").stderr


NOBODY = 65534


@pytest.mark.parametrize("state", ["own", "linked", "missing"])
def test_root_makes_the_key_as_the_user_of_the_agent(config: pathlib.Path, state: str) -> None:
    if os.geteuid() != 0:
        servers.end_without("only root can run it for another user")
    # The folders of tests are closed to others.
    with tempfile.TemporaryDirectory() as name:
        top = pathlib.Path(name)
        top.chmod(0o755)
        folder, of_root = top / "state", top / "etc"
        of_root.mkdir()
        if state != "missing":
            folder.mkdir()
            os.chown(folder, NOBODY, NOBODY)
        if state == "linked":
            (folder / "keys").symlink_to(of_root)
        with config.open("a") as file:
            file.write(f"[DEFAULT]\nstate_path = {folder}\n")
        done = run(config, "cyborg-agent", "key")
        assert (done.returncode, list(of_root.iterdir())) == (int(state != "own"), []), done
        assert ("state does not exist: make it" in done.stderr) is (state == "missing"), done
        if state == "own":
            made = (folder / "keys", folder / "keys" / "host.pem")
            assert [path.stat().st_uid for path in made] == [NOBODY, NOBODY]
