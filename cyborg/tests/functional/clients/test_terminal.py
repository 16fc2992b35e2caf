# SPDX-License-Identifier: Apache-2.0
"""Every table of ``openstack accelerator`` fits the terminal: a list is one, no uuid is cut."""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from cliff import utils as cliff_utils
from oslo_config import cfg

from cyborg.db import models
from cyborg.drivers import base, pci
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import Site

pytestmark = pytest.mark.usefixtures("quiet_openstack")

UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OF_PYTHON = re.compile(r"None|\{'|\['|<[a-z]+\.")
GROUPS = json.dumps([{"resources:FPGA": "1", "trait:CUSTOM_FAKE_DEVICE": "required"}])
ENTRIES = {
    entry.name: entry
    for entry in importlib.metadata.entry_points(group="openstack.cyborg.v2")
    if entry.name.startswith("accelerator_")
}


def populate(
    osc: OpenStack, site: Site, conf: cfg.ConfigOpts, ctx: context.RequestContext
) -> None:
    hosts.apply(
        dataclasses.replace(
            hosts.card("a", cleans=True),
            control_path=base.ControlPath(cpid_type="PCI", cpid_info=pci.split("0000:0c:00.0")),
            std_board_info=json.dumps({"device_id": "0x" + "a" * 100}),
        ),
        hosts.device("b", hosts.deployable("host-1_b"), unhealthy="It burns. \x1b[2J\r" * 20),
    )
    (arq,) = boots.arqs(ctx)
    boots.bind(ctx, [arq], models.new_uuid())
    engine.drain(conf)
    osc("device", "profile", "create", "gold", GROUPS, "--description", "A text for people " * 5)
    osc("device", "attribute", "create", "host-1_a", "rack", "a long value " * 9)
    pool = ("function", "pool", "create", "pool", "--function-id", "aes-128-with-a-long-name")
    osc(*pool, "--free", "1", "--max-devices", "3", "--description", "For the pool " * 9)
    osc("host", "drain", "host-1", "--reason", "The rack is moved. " * 9)


def commands(osc: OpenStack) -> list[list[str]]:
    """The lists, each also with all columns, and what shows one thing."""
    lists = [name.split("_")[1:] for name in ENTRIES if name.endswith("_list")]
    wanted: list[list[str]] = []
    for words in lists:
        more = {"arq": ["--all-projects"], "usage": ["--all-projects"]}.get(words[0], [])
        more = ["host-1"] if words == ["host", "key", "list"] else more
        wanted.append([*words, *more])
        if words not in (["usage", "list"], ["host", "key", "list"]):
            wanted.append([*words, *more, "--long"])
    (arq,) = osc("arq", "list", "--all-projects")
    return [
        *wanted,
        ["device", "profile", "candidates", "gold"],
        ["device", "show", "host-1_a"],
        ["device", "show", "host-1_b"],
        ["deployable", "show", "host-1_a"],
        ["device", "profile", "show", "gold"],
        ["function", "pool", "show", "pool"],
        ["host", "show", "host-1"],
        ["service", "show", "host-1"],
        ["arq", "show", arq["uuid"]],
    ]


def test_all_fits(site, osc, conf, ctx, monkeypatch) -> None:
    populate(osc, site, conf, ctx)
    shown = set()
    for words in commands(osc):
        answer = osc.run(*words)
        whole = answer.out
        assert "duplicate" not in answer.err
        uuids = set(UUID.findall(whole))
        for width in (80, 120):
            with monkeypatch.context() as patch:
                patch.setattr(cliff_utils, "terminal_width", lambda width=width: width)
                screen = osc.run(*words).out
            lines = screen.splitlines()
            assert max(map(len, lines), default=0) <= width, (words, screen)
            assert uuids >= set(UUID.findall(screen)), (words, screen)
            if is_list(words):
                assert rules(screen) in {0, 3}, (words, screen)
            else:
                assert set(UUID.findall(screen)) == uuids, (words, screen)
            assert not OF_PYTHON.search(screen), screen
            assert all(char.isprintable() for line in lines for char in line), repr(screen)
        if uuids:
            shown.add(" ".join(words).split(" -")[0])
    assert {"arq list", "attach handle list", "history list"} <= shown


def is_list(words: list[str]) -> bool:
    """True if people have not asked for all columns of a list."""
    return "list" in words and "--long" not in words


def rules(screen: str) -> int:
    """The number of lines that rule tables: three of one table."""
    return sum(line.startswith("+-") for line in screen.splitlines())


def test_every_command_and_argument_is_explained() -> None:
    silent = []
    for name, entry in ENTRIES.items():
        command = entry.load()
        parser: argparse.ArgumentParser = command(None, None).get_parser("openstack")
        if len((command.__doc__ or "").strip().splitlines()[0]) < 10:
            silent.append(name)
        silent += [f"{name}: {each.dest}" for each in parser._actions if not each.help]
    assert silent == []


def test_in_a_terminal(site, osc, monkeypatch) -> None:
    """A list is one table, and the summary is in colour unless NO_COLOR is set."""
    ill = hosts.card("b", range(4, 7), resource_class="CUSTOM_LONG_NAME_OF_A_GPU", unhealthy="Hot")
    hosts.apply(hosts.card("a"), ill)
    part, text = hosts.deployable("host-2_c"), json.dumps({"a": "b" * 200})
    hosts.apply(hosts.device("c", part, std_board_info=text), host="host-2")
    screen = _terminal(site, 80, "device", "list")
    lines = screen.splitlines()
    assert lines[1].startswith("| host"), screen
    assert rules(screen) == 3
    assert max(map(len, lines)) <= 80, screen
    assert "duplicate" not in screen

    screen = _terminal(site, 80, "summary")
    assert "\x1b[32m4\x1b[0m" in screen  # free
    assert "\x1b[31m3\x1b[0m" in screen  # out of service
    monkeypatch.setenv("NO_COLOR", "1")
    plain = _terminal(site, 80, "summary")
    assert plain == re.sub("\x1b\\[[0-9]+m", "", screen)
    assert rules(plain) == 3
    assert max(map(len, plain.splitlines())) <= 80
    table = [re.split(r" *\| *", line)[1:-1] for line in plain.splitlines() if line[0] == "|"]
    assert table == [
        ["host", "class", "total", "used", "free", "out"],
        ["host-1.example", "CUSTOM_LONG_NAME_OF_A_GPU", "3", "0", "0", "3"],
        ["host-1.example", "FPGA", "4", "0", "4", "0"],
        ["host-2.example", "FPGA", "4", "0", "4", "0"],
        ["all hosts", "CUSTOM_LONG_NAME_OF_A_GPU", "3", "0", "0", "3"],
        ["all hosts", "FPGA", "8", "0", "8", "0"],
    ]
    assert "Left out: preparing." in plain
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in osc.run("summary").out
    (row,) = osc("summary", "--hostname", "host-2.example")
    assert (row["hostname"], row["free"], row["preparing"]) == ("host-2.example", 4, 0)
    assert osc("summary", "--resource-class", "NONE") == []


def _terminal(site: Site, columns: int, *words: str) -> str:
    """What the program as it is installed writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    options = ["--os-auth-type", "none", "--os-endpoint", site.endpoint]
    started = subprocess.Popen(
        [sys.executable, "-m", "openstackclient.shell", *options, "accelerator", *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    screen = b""
    try:
        while part := os.read(leader, 4096):
            screen += part
    except OSError:
        pass  # so a terminal says that nobody has it open any more
    os.close(leader)
    assert started.wait() == 0, screen
    return screen.decode()
