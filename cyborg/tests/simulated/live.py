# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts on which writes act: FUSE over ``/sys`` in mount and network namespaces.

Needs root, ``/dev/fuse`` and libfuse (Debian: fuse3). Uevents are the kernel's own, and reach
nobody outside.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import importlib.util
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from cyborg.tests import fixtures
from cyborg.tests.simulated import layout
from cyborg.tests.simulated.preload import folder, missing

_PATIENCE = 180
_NEWNS, _NEWNET = 0x00020000, 0x40000000


class Host:
    """A host, and the process that keeps it."""

    def __init__(self, root: pathlib.Path, spec: str | Mapping[str, Any]) -> None:
        self.layout = layout.load(spec)
        self._root = root
        self._stack = contextlib.ExitStack()
        self._workers: concurrent.futures.ProcessPoolExecutor | None = None
        self._log = root / "log"
        command = [sys.executable, "-m", "cyborg.tests.simulated.fuse_server", str(root)]
        with self._log.open("w") as log:
            self._server = subprocess.Popen(
                ["unshare", "--mount", "--net", *command, json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._wait()

    def card(self, name: str, number: int = 0) -> str:
        return self.layout.named[name][number]

    def path(self, path: str) -> pathlib.Path:
        """A path as it is on the host, seen from outside; ``resolve`` would lead out of it."""
        return pathlib.Path(f"/proc/{self._server.pid}/root", path.lstrip("/"))

    def device(self, address: str) -> pathlib.Path:
        return self.path(f"/sys/bus/pci/devices/{address}")

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.submit(function, *arguments).result(_PATIENCE)

    def submit(
        self, function: Callable[..., Any], *arguments: Any
    ) -> concurrent.futures.Future[Any]:
        if self._workers is None:
            # Forked by a process that has imported what tests need, once for all hosts.
            server = multiprocessing.get_context("forkserver")
            server.set_forkserver_preload(["cyborg.tests.conftest", *fixtures.MODULES])
            self._workers = concurrent.futures.ProcessPoolExecutor(
                1, mp_context=server, initializer=_enter, initargs=(self._server.pid,)
            )
        return self._workers.submit(function, *arguments)

    def start(self, *command: str, **keywords: Any) -> subprocess.Popen[str]:
        """Start a command on the host; it is killed with the host."""
        enter = ["nsenter", f"--target={self._server.pid}", "--mount", "--net"]
        environment = {**keywords.pop("env", os.environ), "SYSTEMD_DEVICE_VERIFY_SYSFS": "0"}
        process = subprocess.Popen(
            [*enter, f"--wd={pathlib.Path.cwd()}", *command], env=environment, text=True, **keywords
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=_PATIENCE)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def change(self, method: str, *arguments: Any, **keywords: Any) -> None:
        """Call a method of the host's tree, such as ``pull``; listeners get the uevents."""
        text = json.dumps([method, *arguments, *([keywords] if keywords else [])])
        self.path("/sys/.simulated").write_text(text)

    def writes(self) -> list[tuple[str, str]]:
        lines = (self._root / "writes").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines]

    def stop(self) -> None:
        self._stack.close()
        if self._workers is not None:
            for process in list((self._workers._processes or {}).values()):
                process.kill()
            self._workers.shutdown(wait=False, cancel_futures=True)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        try:
            self._server.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server.stdout.close()

    def _wait(self) -> None:
        assert self._server.stdout is not None
        ready = multiprocessing.connection.wait([self._server.stdout.fileno()], _PATIENCE)
        if not ready or self._server.stdout.readline() != "ready\n":
            self._server.kill()
            self.stop()
            raise RuntimeError(f"no simulated host came up: {self._log.read_text()[-2000:]}")


@pytest.fixture
def simulate_live() -> Iterator[Callable[[str | Mapping[str, Any]], Host]]:
    """``simulate_live("nvidia")`` makes a host on which writes act."""
    reason = _lacking()
    if reason is not None:
        missing(reason)
    with contextlib.ExitStack() as stack:

        def make(spec: str | Mapping[str, Any]) -> Host:
            host = Host(stack.enter_context(folder()), spec)
            stack.callback(host.stop)
            return host

        yield make


def _lacking() -> str | None:
    if os.geteuid() != 0:
        return "only root can mount a simulated /sys"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "there is no /dev/fuse"
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    try:
        importlib.import_module("mfusepy")
    except OSError:
        return "libfuse is not installed; run: apt-get install fuse3"
    return None


def _enter(pid: int) -> None:
    """Move this process, which has one thread, to the namespaces of a host."""
    here = pathlib.Path.cwd()
    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in (("net", _NEWNET), ("mnt", _NEWNS)):
        with pathlib.Path(f"/proc/{pid}/ns/{name}").open() as file:
            if libc.setns(file.fileno(), kind):
                raise OSError(ctypes.get_errno(), f"cannot enter namespace {name} of {pid}")
    os.chdir(here)
    os.environ["SYSTEMD_DEVICE_VERIFY_SYSFS"] = "0"
