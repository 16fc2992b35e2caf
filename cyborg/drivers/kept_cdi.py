# SPDX-License-Identifier: Apache-2.0
"""Devices in files of the Container Device Interface that vendors' tools keep on the host.

A file of a later folder counts more, as in the specification. A file that cannot be used is left
out: a container runtime leaves it out too. What is made for a handle of ours is copied from there
when the handle is prepared, so that one name gives a container all of it.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from oslo_config import cfg

from cyborg.common import files

LOG = logging.getLogger(__name__)

_FILES_MAX, _DEVICES_MAX, _DEPTH_MAX = 64, 1024, 16
_BYTES_MAX = 1024 * 1024
_ENDINGS = (".json", ".yaml", ".yml")
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
#: The files of handles in use, of which a folder may have thousands.
_OURS = re.compile(r"\.?cyborg-[0-9a-f]{8}-")
#: The folder of the daemon of MPS, which NVIDIA's tool gives to each container: who reaches the
#: daemon can take its place for the containers of others.
_DAEMON = "/nvidia-mps"
#: The kind of devices that hold the answers of vendors' tools.
_SAID = "said.cyborg.openstack.org"


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its full name, with the version of its file and that file's common edits."""

    name: str
    version: tuple[int, int, int]
    common: Mapping[str, Any]
    edits: Mapping[str, Any]

    @property
    def kind(self) -> str:
        """The vendor and the class."""
        return self.name.partition("=")[0]

    @property
    def called(self) -> str:
        """The name among those of its kind."""
        return self.name.partition("=")[2]

    @property
    def nodes(self) -> frozenset[str]:
        """The device nodes that it gives, by their paths in the container."""
        found = (each.get("deviceNodes") for each in (self.common, self.edits))
        nodes = (node for each in found if isinstance(each, list) for node in each)
        return frozenset(str(node.get("path")) for node in nodes if isinstance(node, dict))


def named(conf: cfg.ConfigOpts, names: Collection[str]) -> list[Device]:
    """The devices of these full names.

    :raises FileNotFoundError: one of them is in no file
    """
    found = _all(conf) if names else {}
    absent = [name for name in names if name not in found]
    if absent:
        folders = ", ".join(map(str, _folders(conf)))
        raise FileNotFoundError(f"No file of {folders} has the CDI device {absent[0]}")
    return [found[name] for name in names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The nodes that a device must and may give, so that it gives nothing of other accelerators.

    Of those that ``hardware`` matches, since they belong to one accelerator, it gives all that are
    ``needed``, and none that is not ``own``. The device that is called ``name`` is preferred.
    """

    hardware: re.Pattern[str]
    needed: Collection[str]
    own: Collection[str]
    name: str

    def pick(self, devices: Iterable[Device]) -> Device | None:
        """The device that fits best, or None."""
        fit = [each for each in devices if self._fits(each)]
        return min(fit, key=lambda each: (each.called != self.name, each.name), default=None)

    def _fits(self, device: Device) -> bool:
        given = set(filter(self.hardware.fullmatch, device.nodes))
        return given.issuperset(self.needed) and given.issubset(self.own)


def fitting(conf: cfg.ConfigOpts, kind: str, wanted: Wanted) -> str | None:
    """The full name of the device of a kind that gives what is wanted; None if there is none."""
    device = wanted.pick(each for each in _all(conf).values() if each.kind == kind)
    return device.name if device is not None else None


def say(conf: cfg.ConfigOpts, text: str, wanted: Wanted) -> str:
    """Keep what a tool has said of the accelerator that is wanted; the full name for it.

    :raises TypeError, ValueError: it has said something else, or nothing of that
    :raises OSError: it cannot be kept
    """
    device = wanted.pick(_read(text))
    if device is None:
        raise ValueError(f"none of its devices gives {sorted(wanted.needed)} and nothing else")
    kind = f"{_SAID}/{device.kind.partition('/')[2]}"
    document = {
        "cdiVersion": ".".join(map(str, device.version)),
        "kind": kind,
        "containerEdits": device.common,
        "devices": [{"name": wanted.name, "containerEdits": device.edits}],
    }
    folder = _said(conf)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, sort_keys=True)
    files.replace(folder / f"{wanted.name}.json", text, mode=0o644)
    return f"{kind}={wanted.name}"


def _said(conf: cfg.ConfigOpts) -> pathlib.Path:
    return pathlib.Path(conf.state_path, "cdi")


def _folders(conf: cfg.ConfigOpts) -> list[pathlib.Path]:
    return [_said(conf), *map(pathlib.Path, conf.agent.cdi_spec_dirs)]


def _all(conf: cfg.ConfigOpts) -> dict[str, Device]:
    found: dict[str, Device] = {}
    for folder in _folders(conf):
        for path in _files(folder):
            try:
                found |= {each.name: each for each in _read(_text(path))}
            except (OSError, TypeError, ValueError) as exc:
                LOG.info("CDI file %s is left out: %s", path, exc)
    return found


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        names = [name for name in os.listdir(folder) if not _OURS.match(name)]  # noqa: PTH208
    except OSError:
        return []
    found = sorted(name for name in names if name.endswith(_ENDINGS) and name[0] != ".")
    if len(found) > _FILES_MAX:
        LOG.warning("%s has %s CDI files; only %s are read", folder, len(found), _FILES_MAX)
    return [folder / name for name in found[:_FILES_MAX]]


def _text(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        read = file.read(_BYTES_MAX + 1)
    if len(read) > _BYTES_MAX:
        raise ValueError(f"it has more than {_BYTES_MAX} bytes")
    return read.decode("utf-8")


class _Loader(yaml.SafeLoader):
    """Reads YAML without aliases, by which a short text can stand for a huge one."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("it has a YAML alias")
        return super().compose_node(parent, index)


def _read(text: str) -> Iterator[Device]:
    """The devices of a file, in JSON or YAML.

    :raises TypeError, ValueError: it is none, or is too large
    """
    try:
        is_json = text.lstrip().startswith("{")
        document = json.loads(text) if is_json else yaml.load(text, _Loader)  # noqa: S506 - a safe one
    except (yaml.YAMLError, RecursionError) as exc:
        raise ValueError(str(exc)) from exc
    _check_depth(document, _DEPTH_MAX)
    if not isinstance(document, dict):
        raise TypeError("it is not an object")
    kind, devices = document.get("kind"), document.get("devices")
    version = _VERSION.fullmatch(str(document.get("cdiVersion")))
    if not (isinstance(kind, str) and isinstance(devices, list) and version):
        raise ValueError("it is not a CDI specification")
    if len(devices) > _DEVICES_MAX:
        raise ValueError(f"it has more than {_DEVICES_MAX} devices")
    numbers = int(version[1]), int(version[2]), int(version[3])
    common = _edits(document)
    for each in devices:
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            yield Device(f"{kind}={each['name']}", numbers, common, _edits(each))


def _edits(holder: Mapping[str, Any]) -> dict[str, Any]:
    edits = holder.get("containerEdits")
    if edits is None:
        return {}
    if not isinstance(edits, dict):
        raise TypeError("its containerEdits are not an object")
    mounts = edits.get("mounts")
    if not isinstance(mounts, list):
        return edits
    return {**edits, "mounts": [each for each in mounts if not _is_daemon(each)]}


def _is_daemon(mount: object) -> bool:
    return isinstance(mount, dict) and str(mount.get("hostPath")).endswith(_DAEMON)


def _check_depth(value: object, left: int) -> None:
    """Raise ValueError if a document is deeper than that."""
    if not isinstance(value, (dict, list)):
        return
    if not left:
        raise ValueError(f"it is more than {_DEPTH_MAX} levels deep")
    for each in value.values() if isinstance(value, dict) else value:
        _check_depth(each, left - 1)
