# SPDX-License-Identifier: Apache-2.0
"""Discovery passes of the real drivers, to be called in a process that sees a simulated host."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import stevedore
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.agent import discovery
from cyborg.drivers import base, container_facts, pci, privileged, registry

_PATIENCE = 60
_CHILDREN = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec"}


class Pass(NamedTuple):
    """What one pass found, and what became of drivers that found nothing."""

    devices: Mapping[str, tuple[base.Device, ...]]
    errors: Mapping[str, str]
    unread: frozenset[str] = frozenset()


class Cost(NamedTuple):
    """What a pass did beside reading files."""

    children: list[str]
    walks: int


def configured(text: str, drivers: Sequence[str], host: str) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(text)
        file.flush()
        conf(args=[], default_config_files=[file.name], default_config_dirs=[])
    conf.set_override("host", host)
    conf.set_override("enabled_drivers", list(drivers), group="agent")
    return conf


def clean(driver_name: str, text: str, address: str) -> str:
    """Let a driver clean the handle of a PCI function; what went wrong, or an empty text."""
    for context in (privileged.context, privileged.erasing):
        context.set_client_mode(False)
    conf = configured(text, [driver_name], "host-1")
    driver = registry.load(conf).drivers[driver_name]
    assert isinstance(driver, base.Cleanable)
    place = pci.split(address)
    handle = base.HeldHandle(
        attach_type="PCI",
        attach_info=place,
        uuid=str(uuid.UUID(int=1)),
        arq="a",
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=place),
    )
    try:
        driver.clean(handle)
    except (OSError, RuntimeError) as exc:
        return str(exc)
    return ""


def container_edits(driver_name: str, text: str, handle: base.HeldHandle) -> base.ContainerEdits:
    driver = registry.load(configured(text, [driver_name], "host-1")).drivers[driver_name]
    return container_facts.of(driver, handle)


def run(
    drivers: Sequence[str], text: str = "", host: str = "host-1", passes: int = 1
) -> list[Pass]:
    """Let an agent that has just been started make so many passes."""
    looking, errors = _discovery(drivers, text, host)
    found = [looking.run() for _ in range(passes)]
    return [Pass(each.devices, {**errors, **each.errors}, each.unread) for each in found]


def cost(drivers: Sequence[str], text: str = "") -> Cost:
    """What a pass costs when the process has warmed up."""
    seen: list[tuple[str, object]] = []

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in _CHILDREN or event in {"os.listdir", "os.scandir"}:
            seen.append((event, arguments[0] if arguments else None))

    looking, _errors = _discovery(drivers, text, "host-1")
    looking.run()
    sys.addaudithook(watch)
    looking.run()
    now = list(seen)
    return Cost(
        children=[event for event, _ in now if event in _CHILDREN],
        walks=sum(str(place) == "/sys/bus/pci/devices" for _, place in now),
    )


def without_each(driver: str, text: str, addresses: Iterable[str]) -> dict[str, list[base.Device]]:
    """What a driver finds if a function vanishes before more is asked of it: for each."""
    conf = configured(text, [driver], "host-1")
    walk = pci.scan()
    found = {}
    for address in addresses:
        (made,) = registry.load(conf).drivers.values()
        host = _without(walk, address)
        if isinstance(made, base.Matching):
            made.exactness(host.pci)
        found[address] = list(made.discover(host))
    return found


def judged_without(driver: str, text: str, address: str) -> dict[str, str | None]:
    """How the other devices of a driver are when a function vanishes in the middle of a pass."""
    (made,) = registry.load(configured(text, [driver], "host-1")).drivers.values()
    host = _without(pci.scan(), address)
    assert isinstance(made, base.HealthReporting)
    return {
        pci.join(each.control_path.cpid_info): made.health(each, host)
        for each in made.discover(host)
    }


def install(site: str) -> None:
    """Let this process find the distributions in a folder."""
    sys.path.insert(0, site)
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()


def uninstall(site: str) -> None:
    sys.path.remove(site)
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()


@contextlib.contextmanager
def installed(site: str) -> Iterator[None]:
    install(site)
    yield
    uninstall(site)


@dataclasses.dataclass(frozen=True)
class _Host:
    pci: pci.Snapshot
    name: str = "host-1"
    foreign: frozenset[str] = frozenset()


def _without(walk: pci.Snapshot, address: str) -> _Host:
    """The host with a function that vanishes before more is asked of it."""
    return _Host(pci=pci.Snapshot(walk.values(), _Vanishing(walk._details, address)))


class _Vanishing(pci.Details):
    def __init__(self, details: pci.Details, gone: str) -> None:
        self._details = details
        self._gone = gone

    def read(self, address: str, path: str) -> str:
        self._look(address)
        return self._details.read(address, path)

    def names(self, address: str, path: str) -> Iterable[str]:
        self._look(address)
        return self._details.names(address, path)

    def exists(self, address: str) -> bool:
        return address != self._gone

    def location(self, address: str) -> str:
        self._look(address)
        return self._details.location(address)

    def product(self, vendor: str, device: str) -> str | None:
        return self._details.product(vendor, device)

    def _look(self, address: str) -> None:
        if address == self._gone:
            raise FileNotFoundError(str(pathlib.Path("/sys/bus/pci/devices", address)))


def _discovery(
    drivers: Sequence[str], text: str, host: str
) -> tuple[discovery.Discovery, Mapping[str, str]]:
    loaded = registry.load(configured(text, drivers, host))
    return discovery.Discovery(host, loaded.drivers, timeout=_PATIENCE), loaded.errors
