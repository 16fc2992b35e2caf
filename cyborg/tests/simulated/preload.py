# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts for unmodified pyudev, by umockdev's preload library (Debian: umockdev).

The library must be there when a process starts, so code runs in a child process: one for all
tests of a test process, which a test lends a tree for each call.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from cyborg.drivers import kernel_log
from cyborg.tests.simulated import layout, uevents
from cyborg.tests.simulated.kernel import Kernel
from cyborg.tests.simulated.tree import Tree

_PRELOAD = "libumockdev-preload.so.0"
_PATIENCE = 180


class Host(Tree):
    """A tree, and the process that takes it for its ``/sys``."""

    def __init__(self, root: pathlib.Path, spec: str | Mapping[str, Any], machine: Machine) -> None:
        super().__init__(root, layout.load(spec), self._tell)
        self._machine = machine
        self._kernel = Kernel(self)
        self.build()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._machine.call(self.root, function, *arguments)

    def submit(
        self, function: Callable[..., Any], *arguments: Any
    ) -> concurrent.futures.Future[Any]:
        return self._machine.submit(self.root, function, *arguments)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LD_PRELOAD": _PRELOAD, "UMOCKDEV_DIR": str(self.root)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )

    def write(self, path: str, text: str) -> None:
        """Write below ``/sys`` as somebody on the host would, with all that follows from it."""
        self._kernel.write(path, text)

    def _tell(self, properties: Mapping[str, str]) -> None:
        uevents.to_preloaded(self.root, properties)


class Machine:
    """The child process; a new one takes the place of one that died."""

    def __init__(self) -> None:
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def call(self, root: pathlib.Path, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self.submit(root, function, *arguments).result(_PATIENCE)
        except (BrokenProcessPool, TimeoutError):
            self.stop()
            raise

    def submit(
        self, root: pathlib.Path, function: Callable[..., Any], *arguments: Any
    ) -> concurrent.futures.Future[Any]:
        if self._executor is None:
            self._start()
        assert self._executor is not None
        return self._executor.submit(_with_tree, str(root), function, arguments)

    def stop(self) -> None:
        if self._executor is None:
            return
        processes = list((self._executor._processes or {}).values())
        self._executor.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        self._executor = None

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LD_PRELOAD", _PRELOAD)
            preloaded = self._executor.submit(_preloaded).result(_PATIENCE)
        if not preloaded:
            self.stop()
            missing("umockdev is not installed; run: apt-get install umockdev")


def missing(sentence: str) -> None:
    """End a test that lacks something of the machine; in CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@contextlib.contextmanager
def folder() -> Iterator[pathlib.Path]:
    """A directory for a tree.

    Not in memory, which is /dev/shm: umockdev keeps a socket for each opening of what is in /dev.
    """
    with tempfile.TemporaryDirectory(prefix="simulated-", dir="/tmp") as path:
        yield pathlib.Path(path)


@pytest.fixture(scope="session")
def simulator() -> Iterator[Machine]:
    """The process that all simulated hosts of this test process are shown to."""
    child = Machine()
    yield child
    child.stop()


@pytest.fixture
def simulate(simulator: Machine) -> Iterator[Callable[[str | Mapping[str, Any]], Host]]:
    """``simulate("nvidia")`` makes the host of that file in ``tests/data/hosts``."""
    with contextlib.ExitStack() as stack:

        def make(spec: str | Mapping[str, Any]) -> Host:
            return Host(stack.enter_context(folder()), spec, simulator)

        yield make


def _preloaded() -> bool:
    return _PRELOAD in pathlib.Path("/proc/self/maps").read_text()


@functools.cache
def _empty_file() -> tempfile._TemporaryFileWrapper[bytes]:
    # Not /dev/null, for the reason of folder().
    return tempfile.NamedTemporaryFile(prefix="kernel-log-", dir="/tmp")


def _with_tree(root: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    if os.environ.get("UMOCKDEV_DIR") != root:
        # A host of its own: its kernel has logged nothing, whatever the one before has.
        kernel_log.PATH = _empty_file().name
        os.environ["UMOCKDEV_DIR"] = root
    return function(*arguments)
