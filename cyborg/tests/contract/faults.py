# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH112, PTH120, PTH208
# Paths are joined as texts: the code under test reads them so.
"""One fault at a time in everything that a pass reads, on a simulated host.

To be called in a process that sees the host. ``root`` is the directory of its tree.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from cyborg.agent import discovery
from cyborg.drivers import base, kernel_log, pci, registry
from cyborg.drivers.nvidia import vgpu_types
from cyborg.drivers.pci import product_names
from cyborg.tests.contract import passes

_DEVICES = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_OPTIONAL = re.compile(r"/(aer_dev_\w+|(current|max)_link_\w+)$")
#: Reading them tells Python nothing.
_LINKS = ("driver", "iommu_group", "physfn", "subsystem")
#: Folders of links to what functions have; each link is followed.
_LISTS = ("/sys/class/accel", "/sys/class/mdev_bus")
_CLASSES = ("/sys/class/block", "/sys/class/net", "/sys/dev/block", *_LISTS)
_READS = {"open", "os.listdir", "os.scandir"}
#: Of the host as a whole; umockdev shows the machine's own for those that a tree lacks.
_OF_HOST = "/proc/"
#: A read of it fails with EIO.
_FAILS = "/proc/self/mem"
_CONTENTS = {
    "empty": b"",
    "no number": b"nonsense\n",
    "huge": b"9" * 5000,
    "not UTF-8": b"\xff\xfe\0\x80\n",
}
_ABSENT = ("missing", "dangling")
_LINK_TO = {"unreadable": "", "dangling": "nowhere"}
#: The ways in which a path is broken.
WAYS = ("missing", *_LINK_TO, *_CONTENTS, "gone")

_listener: Callable[[str], None] | None = None


class Harm(NamedTuple):
    """What a fault did that it should not do."""

    path: str
    way: str
    what: str


class Source(NamedTuple):
    """What depends on a fact of the whole host: the devices of some drivers, or all that can carry
    disks and networks of the host. ``removals`` are the ways in which a sound host may show it.
    """

    drivers: frozenset[str] = frozenset()
    carriers: bool = False
    removals: frozenset[str] = frozenset()


class Result(NamedTuple):
    """How many faults there were, the paths of no function, and the harm that faults did."""

    faults: int
    shared: set[str]
    harm: list[Harm]


def inject(root: str, drivers: Sequence[str], text: str) -> Result:
    """Break each path in each way, with one pass of an agent that knew the host before."""
    text = _with_state(root, text)
    log = pathlib.Path(tempfile.gettempdir(), f"no-kernel-log-{os.getpid()}")
    log.touch()
    kernel_log.PATH = str(log)
    paths, sound = _recorded(drivers, text)
    paths.discard(str(log))
    paths |= {
        f"{_DEVICES}/{name}/{link}"
        for name in os.listdir(_DEVICES)
        for link in _LINKS
        if os.path.lexists(f"{_DEVICES}/{name}/{link}")
    }
    paths |= {
        f"{folder}/{name}"
        for folder in _CLASSES
        if os.path.isdir(folder)
        for name in os.listdir(folder)
    }
    shared, harm, faults = set(), [], 0
    for path in sorted(paths):
        address = _function(root, path)
        if address is None:
            shared.add(path.removeprefix(root))
            continue
        affected = _with_boards(_affected(root, address), sound)
        erring = _owners(sound, affected) | {discovery.WALK}
        # It knows the host, and nothing of the faults before.
        looking = _agent(drivers, text)
        looking.run()
        for way in WAYS:
            faults += 1
            with _broken(root, path, address, way):
                found = looking.run()
            harm += [
                Harm(path, way, what)
                for what in (
                    *_harm(
                        *(sound, found, affected, (path, *affected)),
                        erring=erring,
                        absent=way in _absences(root, path),
                    ),
                    *(f"{each} is not read either" for each in found.unread - affected),
                    *(_relaxed(sound, found) if way not in _removals(root, path) else ()),
                    *(_changed_kinds(sound, found) if way not in _kinds(root, path) else ()),
                )
            ]
    if _agent(drivers, text).run() != sound:
        harm.append(Harm("all", "mended", "the host is not as it was"))
    return Result(faults, shared, harm)


def inject_shared(root: str, drivers: Sequence[str], text: str) -> list[Harm]:
    """Break the lists of names that all drivers share: nothing is lost, offered or healed by it.

    They are files of the tree's directory.
    """
    names, types = pathlib.Path(root, "pci.ids"), pathlib.Path(root, "vgpuConfig.xml")
    kept = product_names.PATHS, vgpu_types.VENDORS_LIST
    product_names.PATHS, vgpu_types.VENDORS_LIST = (names,), types
    names.write_text("10de  NVIDIA Corporation\n\t1eb8  TU104GL [Tesla T4]\n")
    types.write_text("<vgpuconfig/>")
    try:
        sound = _agent(drivers, text).run()
        harm = []
        for path in (names, types):
            for way in (each for each in WAYS if each != "gone"):
                with _broken(root, f"/{path.name}", "", way):
                    found = _agent(drivers, text).run()
                harm += [Harm(str(path), way, str(each)) for each in found.errors.items()]
                changed = _offers(sound) ^ _offers(found)
                harm += [Harm(str(path), way, f"{each} changes") for each in changed]
                harm += [Harm(str(path), way, each) for each in _relaxed(sound, found)]
        return harm
    finally:
        product_names.PATHS, vgpu_types.VENDORS_LIST = kept


def inject_host(
    root: str, drivers: Sequence[str], text: str, sources: Mapping[str, Source]
) -> Result:
    """Break each source of facts of the whole host, for an agent that knew it and for the next.

    The state directory and the kernel's log are below the tree's directory.
    """
    text = _with_state(root, text)
    kernel_log.PATH = f"{root}/kmsg"
    first = _agent(drivers, text)
    first.run()
    first.remember()
    paths, sound = _recorded(drivers, text)
    carriers = {each.address for each in (sound.functions or {}).values() if pci.can_carry(each)}
    shared = {path.removeprefix(root) for path in paths if _function(root, path) is None}
    harm, faults = [], 0
    for path in sorted(shared & sources.keys()):
        source = sources[path]
        for way in (each for each in WAYS for _knows in range(2)):
            looking = _agent(drivers, text)
            if faults % 2 == 0:
                looking.run()
            faults += 1
            with _broken_source(root, path, way):
                found = looking.run()
            is_removed = way in source.removals
            whats = [
                *_harm(
                    *(sound, found, carriers if source.carriers else set(), (path,)),
                    erring=found.errors,
                    failing=source.drivers,
                    absent=is_removed,
                ),
                *(() if is_removed else _relaxed(sound, found)),
            ]
            harm += [Harm(path, way, what) for what in whats]
    if _agent(drivers, text).run() != sound:
        harm.append(Harm("all", "mended", "the host is not as it was"))
    return Result(faults, shared, harm)


def _with_state(root: str, text: str) -> str:
    pathlib.Path(root, "state/cards").mkdir(parents=True, exist_ok=True)
    return f"[DEFAULT]\nstate_path = {root}/state\n{text}"


def _agent(drivers: Sequence[str], text: str) -> discovery.Discovery:
    loaded = registry.load(passes.configured(text, drivers, "host-1"))
    assert loaded.errors == {}
    return discovery.Discovery("host-1", loaded.drivers, timeout=60)


def _recorded(drivers: Sequence[str], text: str) -> tuple[set[str], discovery.Findings]:
    """Every path that the first pass of an agent reads, and what it finds."""
    global _listener  # noqa: PLW0603 - an audit hook can never be taken away
    _listen()
    # What is imported late is read by now.
    _agent(drivers, text).run()
    looking = _agent(drivers, text)
    paths: set[str] = set()
    _listener = paths.add
    try:
        return paths, looking.run()
    finally:
        _listener = None


@functools.cache
def _listen() -> None:
    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in _READS and _listener is not None and isinstance(arguments[0], (str, bytes)):
            _listener(os.fsdecode(arguments[0]).rstrip("/"))

    sys.addaudithook(hook)


def _function(root: str, path: str) -> str | None:
    named = _ADDRESS.search(path)
    if named is not None:
        return named.group()
    real = os.path.realpath(f"{root}{path}")
    return next(reversed(_ADDRESS.findall(real)), None)


def _affected(root: str, address: str) -> set[str]:
    """The functions of the same card or IOMMU group, and those behind it."""
    place = os.path.realpath(f"{root}{_DEVICES}/{address}")
    bus = address.rpartition(":")[0]
    group = os.path.realpath(f"{place}/iommu_group")
    return {
        name
        for name in os.listdir(f"{root}{_DEVICES}")
        if name.startswith(f"{bus}:")
        or os.path.realpath(f"{root}{_DEVICES}/{name}").startswith(f"{place}/")
        or os.path.realpath(f"{root}{_DEVICES}/{name}/iommu_group") == group
    }


def _with_boards(affected: set[str], sound: discovery.Findings) -> set[str]:
    """The functions with those of other cards that are one device with them."""
    devices = [_functions(device) for found in sound.devices.values() for device in found]
    return affected.union(*(each for each in devices if each & affected))


def _absences(root: str, path: str) -> set[str]:
    """The ways after which the kernel shows no such thing: then a device may be gone too."""
    if os.path.dirname(path) == _DEVICES:
        return set(WAYS)
    if os.path.dirname(path) in _LISTS:
        return {"gone", "missing"}
    if os.path.dirname(path) in _CLASSES:
        return {"gone"}
    if os.path.isdir(f"{root}{path}"):
        return set(WAYS) - {"unreadable"}
    # Without this file the kernel says that the function has no SR-IOV.
    no_sriov = {"missing", "dangling"} if path.endswith("/sriov_totalvfs") else set()
    return {"gone", "empty", *no_sriov}


def _removals(root: str, path: str) -> set[str]:
    """The ways after which the host has no such thing any more, so that its use has ended."""
    if os.path.dirname(path) == _DEVICES or path.endswith("_err_count"):
        return {"missing", "gone"}
    if os.path.dirname(path) in _CLASSES:
        return {"gone"}
    if os.path.isdir(f"{root}{path}"):
        return set(WAYS) - {"unreadable"}
    if path.endswith("/reset_method"):
        # Words that we do not know are methods that we do not use.
        return set(WAYS) - {"unreadable"}
    if path.endswith("/status"):
        # Not every release of a driver has it.
        return {"gone", *_ABSENT}
    # Not every function has these files, and virtual machines show empty ones of links.
    optional = {"missing", "dangling", "empty"} if _OPTIONAL.search(path) else set()
    return {"gone", *optional}


def _kinds(root: str, path: str) -> set[str]:
    """The ways after which the kernel says that a device is of another kind."""
    # Such as an endpoint without a file of its services, or a port without a function.
    return {*_removals(root, path), *_ABSENT}


@contextlib.contextmanager
def _broken(root: str, path: str, address: str, way: str) -> Iterator[None]:
    if way == "gone":
        with _gone_when_read(root, path, address):
            yield
        return
    parent, name = os.path.split(path if path.startswith(root) else f"{root}{path}")
    place = pathlib.Path(os.path.realpath(parent), name)
    aside = pathlib.Path(root, "aside")
    existed = os.path.lexists(place)
    is_directory = place.is_dir()
    if existed:
        place.rename(aside)
    if not place.parent.is_dir():
        pass
    elif way in _LINK_TO:
        # A link to itself cannot be followed, and a directory cannot be listed through it.
        loop = _FAILS if not is_directory else name
        place.symlink_to(_LINK_TO[way] or loop)
    elif way in _CONTENTS:
        place.write_bytes(_CONTENTS[way])
    yield
    if os.path.lexists(place):
        place.unlink()
    if existed:
        aside.rename(place)


@contextlib.contextmanager
def _gone_when_read(root: str, path: str, address: str) -> Iterator[None]:
    """Take the function off the bus as soon as the path is read; a link when the walk reads it."""
    global _listener  # noqa: PLW0603 - as above
    link = pathlib.Path(f"{root}{_DEVICES}/{address}")
    target = link.readlink()
    place = pathlib.Path(os.path.realpath(link))
    aside = pathlib.Path(root, "aside")
    is_link = path.endswith(_LINKS) or os.path.dirname(path) in _CLASSES
    trigger = path if not is_link else f"{_DEVICES}/{address}/numa_node"

    def pull(read: str) -> None:
        if read == trigger and link.is_symlink():
            link.unlink()
            place.rename(aside)

    _listener = pull
    try:
        yield
    finally:
        _listener = None
        if aside.exists():
            aside.rename(place)
            link.symlink_to(target)


@contextlib.contextmanager
def _broken_source(root: str, path: str, way: str) -> Iterator[None]:
    """Break what is no function's; ``gone`` is what is there when it is read first only."""
    place = path if path.startswith(("/sys/", _OF_HOST)) else f"{root}{path}"
    if way == "gone":
        with _absent(place, after=1):
            yield
    elif way in _ABSENT and place.startswith(_OF_HOST):
        with _absent(place):
            yield
    else:
        with _broken(root, path, "", way):
            yield


@contextlib.contextmanager
def _absent(path: str, after: int = 0) -> Iterator[None]:
    """Let every read of a path fail as if it did not exist, after some that do not."""
    global _listener  # noqa: PLW0603 - as above
    reads = itertools.count()

    def refuse(read: str) -> None:
        if read == path and next(reads) >= after:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    _listener = refuse
    try:
        yield
    finally:
        _listener = None


def _harm(
    sound: discovery.Findings,
    found: discovery.Findings,
    affected: set[str],
    names: Collection[str],
    *,
    erring: Collection[str],
    failing: Collection[str] = (),
    absent: bool,
) -> Iterator[str]:
    """What a fault does beyond the affected functions.

    ``erring`` drivers may have an error that has one of the names, and ``failing`` ones may fail.
    """
    for driver, sentence in found.errors.items():
        if driver not in erring:
            yield f"driver {driver} has an error: {sentence}"
        elif not any(name in sentence for name in names):
            yield f"the error of {driver} names neither function nor file: {sentence}"
    for driver, devices in sound.devices.items():
        now = found.devices.get(driver)
        if now is None:
            if driver not in failing:
                yield f"driver {driver} fails: {found.errors.get(driver)}"
            continue
        if driver not in failing and _others(devices, affected) != _others(now, affected):
            yield f"other devices of driver {driver} change"
        present = {str(device.control_path) for device in now}
        for device in devices:
            is_known = str(device.control_path) in present or _functions(device) & found.unread
            if not (is_known or absent):
                yield f"device {device.control_path} of driver {driver} is lost"


def _owners(sound: discovery.Findings, affected: set[str]) -> set[str]:
    """The drivers of affected functions; what a driver withholds is not known."""
    return {
        driver
        for driver, devices in sound.devices.items()
        if not devices or any(_functions(device) & affected for device in devices)
    }


def _relaxed(sound: discovery.Findings, found: discovery.Findings) -> Iterator[str]:
    """What is offered, or is healthy, only because something could not be read."""
    before = _offers(sound)
    for driver, kind, address in sorted(_offers(found) - before):
        if address not in found.unread:
            yield f"driver {driver} offers {address} as {kind}"
    ailing = {
        str(device.control_path): device
        for devices in sound.devices.values()
        for device in devices
        if device.unhealthy is not None
    }
    for device in (device for devices in found.devices.values() for device in devices):
        was = ailing.get(str(device.control_path))
        known = device.unhealthy or device.health_unknown or _functions(device) & found.unread
        if was is not None and not known:
            yield f"{device.control_path} becomes healthy: {was.unhealthy}"
    unclean = _cleaned(sound) - _cleaned(found)
    present = {part.name for part in _parts(found)}
    yield from (f"{name} is not cleaned any more" for name in sorted(unclean & present))


def _changed_kinds(sound: discovery.Findings, found: discovery.Findings) -> Iterator[str]:
    """Devices with the same functions that are given out, or programmed, in another way."""
    before = {str(device.control_path): device for device in _devices(sound)}
    for device in _devices(found):
        was = before.get(str(device.control_path), device)
        same = _functions(was) == _functions(device) and not _functions(device) & found.unread
        if same and (kinds := [*map(_kinds_of, (was, device))])[0] != kinds[1]:
            yield f"{device.control_path} changes from {kinds[0]} to {kinds[1]}"


def _kinds_of(device: base.Device) -> list[tuple[str, str | None]]:
    return [(part.name, part.program_mode) for part in device.deployables]


def _offers(found: discovery.Findings) -> set[tuple[str, str, str]]:
    """Each function that a guest could get: driver, resource class, address."""
    return {
        (driver, part.resource_class, pci.join(handle.attach_info))
        for driver, devices in found.devices.items()
        for device in devices
        for part in device.deployables
        for handle in part.attach_handles
    }


def _parts(found: discovery.Findings) -> Iterator[base.Deployable]:
    for device in _devices(found):
        yield from device.deployables


def _devices(found: discovery.Findings) -> Iterator[base.Device]:
    return itertools.chain.from_iterable(found.devices.values())


def _cleaned(found: discovery.Findings) -> set[str]:
    return {part.name for part in _parts(found) if part.cleans}


def _others(devices: Sequence[base.Device], affected: set[str]) -> list[base.Device]:
    return [device for device in devices if not _functions(device) & affected]


def _functions(device: base.Device) -> set[str]:
    infos = [device.control_path.cpid_info]
    infos += [each.attach_info for dep in device.deployables for each in dep.attach_handles]
    return {pci.join(info) for info in infos}
