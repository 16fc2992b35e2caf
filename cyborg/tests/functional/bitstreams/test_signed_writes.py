# SPDX-License-Identifier: Apache-2.0
"""The privileged side writes only what is signed, whatever the agent's user says of it."""

from __future__ import annotations

import math
import os
import pathlib
from collections.abc import Callable, Iterator

import pytest
from oslo_config import cfg

from cyborg.drivers import base, card_tools, privileged, signed_copies
from cyborg.tests.signers import Signer

ADDRESS = "0000:3b:00.0"
GOOD = b"what was signed"
OPTIONS = ("require_signature", "trusted_certificate_ids", "max_bitstream_mib")


@pytest.fixture
def written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """What the vendor's tool was given, where it was started."""
    tool, given = tmp_path / "tool", tmp_path / "given"
    tool.write_text(f"#!/bin/sh\nfor last; do :; done\ncp $last {given}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(privileged, "_XBMGMT", str(tool))
    monkeypatch.setattr(privileged.programming, "client_mode", False)
    return given


@pytest.fixture
def option() -> Iterator[Callable[[str, object], None]]:
    """Set an option of the file that the helper reads."""
    options = signed_copies.programming_options()
    before = {name: options[name] for name in OPTIONS}

    def setting(name: str, value: object) -> None:
        cfg.CONF.set_override(name, value, group="programming")

    yield setting
    for name in before:
        cfg.CONF.clear_override(name, group="programming")


@pytest.fixture
def program(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> Callable[..., None]:
    """Load a file of that content with that signature."""

    def programming(data: bytes, signature: dict[str, str]) -> None:
        file = tmp_path / "bitstream"
        file.write_bytes(data)
        target = base.ProgramTarget(
            deployable="host-1_a",
            control_path=base.ControlPath(cpid_type="PCI", cpid_info={}),
            attach_handles=(),
            until=math.inf,
            signature=signature,
        )
        card_tools.write(conf, privileged.xbmgmt, ADDRESS, file, target)

    return programming


def test_the_tool_is_given_what_was_signed(keys, program, written, option, monkeypatch):
    signer = Signer(keys)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    option("require_signature", True)
    option("trusted_certificate_ids", [signer.uuid])
    program(GOOD, Signer(keys, by=signer).sign(GOOD))
    assert written.read_bytes() == GOOD


def test_nothing_else_reaches_it(keys, program, written, option, monkeypatch):
    signer, stranger, old = Signer(keys), Signer(keys), Signer(keys, days=(-3, -1))
    for data, signature in (
        (b"another", signer.sign(GOOD)),
        (GOOD, {"img_signature": "x"}),
        (GOOD, old.sign(GOOD)),
    ):
        with pytest.raises(base.NothingWritten, match="signature is not good"):
            program(data, signature)
    option("trusted_certificate_ids", [signer.uuid])
    with pytest.raises(base.NothingWritten, match="signature is not good"):
        program(GOOD, stranger.sign(GOOD))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    option("require_signature", True)
    with pytest.raises(base.NothingWritten, match="is not signed"):
        program(GOOD, {})
    assert not written.exists()


def test_a_helper_that_is_not_root_writes_nothing_if_signatures_are_required(
    keys, program, written, option, monkeypatch
):
    """What it has verified belongs to the agent's user."""
    signer = Signer(keys)
    option("require_signature", True)
    option("trusted_certificate_ids", [signer.uuid])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(base.NothingWritten, match="needs the helper to run as root"):
        program(GOOD, signer.sign(GOOD))
    assert not written.exists()


def test_what_is_copied_has_a_bound(keys, program, written, option, tmp_path):
    option("max_bitstream_mib", 1)
    most = b"x" * 1024 * 1024
    program(most, Signer(keys).sign(most))
    assert written.read_bytes() == most
    written.unlink()

    more = most + b"x"
    with pytest.raises(base.NothingWritten, match="has more than 1 MiB"):
        program(more, Signer(keys).sign(more))
    assert not written.exists()


def test_only_a_file_is_copied(tmp_path: pathlib.Path) -> None:
    file, pipe, link = (tmp_path / name for name in ("file", "pipe", "link"))
    file.write_bytes(GOOD)
    os.mkfifo(pipe)
    link.symlink_to(file)
    for path in (pathlib.Path("/dev/zero"), pipe, link, tmp_path):
        with pytest.raises(OSError, match=r"it is not a file|symbolic links"):
            signed_copies.copy_file(str(path), tmp_path / "copy", 1)
    signed_copies.copy_file(str(file), tmp_path / "copy", 1)
    assert (tmp_path / "copy").read_bytes() == GOOD


def test_a_key_manager_that_is_away_puts_the_write_off(keys, silent_vault, program, written):
    signature = Signer(keys).sign(GOOD)
    with silent_vault, pytest.raises(base.NotPermitted, match="cannot be verified now"):
        program(GOOD, signature)
    assert not written.exists()
