# SPDX-License-Identifier: Apache-2.0
"""A NIC whose functions are veth interfaces: a tree for /sys, and an ``ip`` that knows its port.

All but what a port enforces on its functions is the kernel's own, in real network namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import pathlib
import secrets
import subprocess
import sys
from typing import Any

_REAL = "/usr/sbin/ip"
_NEW_MOUNTS = 0x0002_0000


def be_plugin(
    devices: pathlib.Path, variables: dict[str, str], text: str, said: pathlib.Path
) -> None:
    """Be ``cyborg-cni`` in this process, which is a fork, where /sys has these devices."""
    assert ctypes.CDLL(None).unshare(_NEW_MOUNTS) == 0
    for words in (["--make-rprivate", "/"], ["--bind", str(devices), "/sys/bus/pci/devices"]):
        subprocess.run(["/usr/bin/mount", *words], check=True)
    os.environ.clear()
    os.environ.update(variables)
    sys.stdin = io.StringIO(text)
    with said.open("w") as file, contextlib.redirect_stdout(file):
        status = importlib.import_module("cyborg.cmd.cni").main([])
    sys.exit(status)


def ip(*words: str) -> str:
    """What the real command prints."""
    done = subprocess.run([_REAL, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


class Card:
    """A port with virtual functions, whose other ends are wires that this host keeps."""

    def __init__(self, folder: pathlib.Path, addresses: list[str]) -> None:
        self.tag = secrets.token_hex(3)
        self.folder = folder
        self.devices = folder / "devices"
        self.port = f"cp{self.tag}"
        self.names = [f"cf{self.tag}{number}" for number in range(len(addresses))]
        self.macs: list[str] = []
        self.facts = folder / "card.json"
        self._lay(addresses)
        self.bin = folder / "bin"
        self.bin.mkdir()
        script = self.bin / "ip"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {__file__} {self.facts} "$@"\n')
        script.chmod(0o755)

    def _lay(self, addresses: list[str]) -> None:
        root = self.devices / "0000:0b:00.0"
        (root / "net" / self.port).mkdir(parents=True)
        ip("link", "add", self.port, "type", "veth", "peer", "name", f"cq{self.tag}")
        functions, enforced = [], []
        for number, (address, name) in enumerate(zip(addresses, self.names, strict=True)):
            wire, folder = f"cw{self.tag}{number}", self.devices / address
            ip("link", "add", name, "type", "veth", "peer", "name", wire)
            (folder / "net").mkdir(parents=True)
            (folder / "physfn").symlink_to("../0000:0b:00.0")
            (root / f"virtfn{number}").symlink_to(f"../{address}")
            functions.append([str(folder / "net"), wire])
            (link,) = json.loads(ip("-json", "link", "show", "dev", name))
            self.macs.append(link["address"])
            enforced.append({"vf": number, "address": "00:00:00:00:00:00", "spoofchk": True})
        facts = {"port": self.port, "functions": functions, "vfs": enforced}
        facts["home"] = f"/proc/{os.getpid()}/ns/net"
        self.facts.write_text(json.dumps(facts))
        _follow(facts)

    def enforced(self, number: int) -> dict[str, Any]:
        """What the port enforces on a function."""
        found: dict[str, Any] = json.loads(self.facts.read_text())["vfs"][number]
        return found

    def fail(self, *words: str) -> None:
        """Let ``ip`` fail where it is given all these words; never, if there are none."""
        facts = json.loads(self.facts.read_text()) | {"fail": list(words)}
        self.facts.write_text(json.dumps(facts))

    def link(self, name: str, netns: str | None = None) -> dict[str, Any] | None:
        """An interface as the kernel shows it."""
        where = () if netns is None else ("-n", netns)
        found = json.loads(ip(*where, "-json", "link", "show"))
        return next((link for link in found if link["ifname"] == name), None)

    def remove(self) -> None:
        """Take the card out."""
        ends = [f"cq{self.tag}", *(f"cw{self.tag}{number}" for number in range(len(self.names)))]
        for name in ends:
            subprocess.run([_REAL, "link", "del", name], capture_output=True, check=False)


def _follow(facts: dict[str, Any]) -> None:
    """Have /sys say which interfaces of functions this host has now."""
    for folder, wire in facts["functions"]:
        done = subprocess.run(
            ["nsenter", f"--net={facts['home']}", _REAL, "-json", "link", "show", "dev", wire],
            capture_output=True, text=True, check=False,
        )
        # A wire has the name of its other end if that is in the same namespace.
        name = json.loads(done.stdout)[0].get("link") if done.returncode == 0 else None
        present = pathlib.Path(folder)
        for each in present.iterdir():
            each.rmdir()
        if name is not None:
            (present / name).mkdir()


def _enforce(facts: dict[str, Any], words: list[str]) -> None:
    number, *settings = words
    vf = facts["vfs"][int(number)]
    for word, value in zip(settings[::2], settings[1::2], strict=True):
        if word == "vlan":
            vf["vlan_list"] = [{"vlan": int(value)}]
        elif word == "qos":
            vf["vlan_list"][0]["qos"] = int(value)
        else:
            key = {"mac": "address", "spoofchk": "spoofchk"}[word]
            vf[key] = value if word == "mac" else value == "on"


def main(file: str, *words: str) -> int:
    """Do what ``ip`` would."""
    path = pathlib.Path(file)
    facts = json.loads(path.read_text())
    if facts.get("fail") and set(facts["fail"]) <= set(words):
        sys.stderr.write("RTNETLINK answers: Operation not permitted\n")
        return 2
    if words[:4] == ("link", "set", "dev", facts["port"]) and words[4] == "vf":
        _enforce(facts, list(words[5:]))
        path.write_text(json.dumps(facts))
        return 0
    done = subprocess.run([_REAL, *words], capture_output=True, text=True, check=False)
    out = done.stdout
    if "show" in words:
        links = json.loads(out or "[]")
        for link in links:
            if link.get("ifname") == facts["port"]:
                link["vfinfo_list"] = facts["vfs"]
        out = json.dumps(links)
    sys.stdout.write(out)
    sys.stderr.write(done.stderr)
    _follow(facts)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
