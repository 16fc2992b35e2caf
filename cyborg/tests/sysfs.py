# SPDX-License-Identifier: Apache-2.0
"""Fabricated PCI functions: a directory that an unmodified pyudev takes for ``/sys``.

The kernel's formats, not ours, are written here: what reads them must cope. The tree is shown by
umockdev's preload library (Debian package umockdev), which must be there when a process starts,
so the reader runs in a child process.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from cyborg.drivers import pci

_PRELOAD = "libumockdev-preload.so.0"
_PATIENCE = 60


def build(root: pathlib.Path, functions: Iterable[pci.Function]) -> pathlib.Path:
    """Write the functions below ``root/sys``; return ``root``."""
    everything = {function.address: function for function in functions}
    for directory in ("bus/pci/devices", "bus/pci/drivers", "class", "kernel/iommu_groups"):
        (root / "sys" / directory).mkdir(parents=True, exist_ok=True)
    for function in everything.values():
        _function(root, function, everything)
    return root


def remove(root: pathlib.Path, address: str) -> None:
    """Take a function's link off the bus, as the kernel does first."""
    (root / "sys/bus/pci/devices" / address).unlink()


def _device_path(function: pci.Function) -> str:
    parts = pci.split(function.address)
    return f"devices/pci{parts['domain']}:{parts['bus']}/{function.address}"


def _function(
    root: pathlib.Path, function: pci.Function, everything: dict[str, pci.Function]
) -> None:
    path = root / "sys" / _device_path(function)
    path.mkdir(parents=True)
    for name, text in _attributes(function).items():
        (path / name).write_text(f"{text}\n")
    _link(path / "subsystem", root / "sys/bus/pci")
    _link(root / "sys/bus/pci/devices" / function.address, path)
    if function.driver is not None:
        driver = root / "sys/bus/pci/drivers" / function.driver
        driver.mkdir(exist_ok=True)
        _link(path / "driver", driver)
    if function.iommu_group is not None:
        group = root / "sys/kernel/iommu_groups" / function.iommu_group
        group.mkdir(exist_ok=True)
        _link(path / "iommu_group", group)
    if function.pf is not None:
        _link(path / "physfn", root / "sys" / _device_path(everything[function.pf]))
    for number, address in enumerate(function.vfs):
        _link(path / f"virtfn{number}", root / "sys" / _device_path(everything[address]))
    for name in function.netdevs:
        (path / "net" / name).mkdir(parents=True)


def _attributes(function: pci.Function) -> dict[str, str]:
    identity = f"{function.vendor}:{function.device}".upper()
    subsystem = f"{function.subsystem_vendor}:{function.subsystem_device}".upper()
    # The uevent file has the class without its leading zeros.
    uevent = {
        **({"DRIVER": function.driver} if function.driver else {}),
        "PCI_CLASS": f"{int(function.class_code, 16):X}",
        "PCI_ID": identity,
        "PCI_SUBSYS_ID": subsystem,
        "PCI_SLOT_NAME": function.address,
    }
    attributes = {
        "uevent": "\n".join(f"{key}={value}" for key, value in uevent.items()),
        "vendor": f"0x{function.vendor}",
        "device": f"0x{function.device}",
        "class": f"0x{function.class_code}",
        "numa_node": str(-1 if function.numa_node is None else function.numa_node),
    }
    if function.sriov_totalvfs:
        attributes["sriov_totalvfs"] = str(function.sriov_totalvfs)
        attributes["sriov_numvfs"] = str(len(function.vfs))
    if function.class_code.startswith("03"):
        attributes["boot_vga"] = str(int(function.boot_vga))
    return attributes


def _link(link: pathlib.Path, target: pathlib.Path) -> None:
    link.symlink_to(os.path.relpath(target, link.parent))


class Machine:
    """A child process that takes a built tree for its ``/sys``."""

    def __init__(self, executor: concurrent.futures.Executor) -> None:
        self._executor = executor

    def call(self, root: pathlib.Path, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module in the process, and return what it returns."""
        return self._executor.submit(_with_tree, str(root), function, arguments).result(_PATIENCE)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """Start the process, or end the test where umockdev is not installed."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as executor:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("LD_PRELOAD", _PRELOAD)
            preloaded = executor.submit(_preloaded).result(_PATIENCE)
        if preloaded:
            yield Machine(executor)
            return
    sentence = "umockdev is not installed; run: apt-get install umockdev"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def _preloaded() -> bool:
    return _PRELOAD in pathlib.Path("/proc/self/maps").read_text()


def _with_tree(root: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    os.environ["UMOCKDEV_DIR"] = root
    return function(*arguments)
