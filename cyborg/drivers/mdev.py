# SPDX-License-Identifier: Apache-2.0
"""Mediated devices of any type that the operator lists, with parents on any bus."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg.drivers import base, mdev_handles, pci, trait_names
from cyborg.drivers.pci import device_spec, sysfs

LOG = logging.getLogger(__name__)

_PARENTS = pathlib.Path("/sys/class/mdev_bus")
_KEYS = frozenset({"parent", "mdev_type", "resource_class", "traits", "type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _MdevSpec:
    """One object of the list: the parents and type it matches, and what they are reported with."""

    parent: str
    mdev_type: str
    resource_class: str
    traits: tuple[str, ...]
    type: str

    @property
    def exactness(self) -> int:
        """The exactness with which it matches a parent, as :class:`base.Matching` counts it."""
        return 1 + sum(char in "0123456789abcdef" for char in self.parent)


class MdevDriver(mdev_handles.HostSteps):
    """Reports the parents that ``[mdev] mdev_spec`` lists, one device each."""

    driver_api: ClassVar[int] = 1

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        texts = conf.mdev.mdev_spec
        self._specs = device_spec.parse_objects(texts, "[mdev] mdev_spec", _spec)
        self._log_once = functools.cache(LOG.info)
        self._problems: list[str] = []

    def exactness(self, functions: pci.Snapshot) -> Mapping[str, int]:
        """The parents that are PCI functions."""
        matched = {}
        for address in functions:
            spec = self._spec(address)
            # A function that is no parent, has just vanished or is broken, is not matched.
            with contextlib.suppress(pci.Vanished, OSError):
                if spec is not None and functions.names(address, "mdev_supported_types"):
                    matched[address] = spec.exactness
        return matched

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every parent that is listed and offers the type."""
        self._problems = []
        if not self._specs:
            self._problems.append("[mdev] mdev_spec is not set, so the driver reports nothing")
            return
        foreign = host.foreign
        for path in map(_PARENTS.joinpath, sysfs.listing(str(_PARENTS))):
            spec = self._spec(path.name)
            if spec is None or path.name in foreign or path.name in host.pci.faults:
                continue
            try:
                device = self._device(host.name, path, spec)
            except (OSError, ValueError) as exc:
                if _is_gone(path):
                    continue
                function = host.pci.get(path.name)
                if function is None:
                    raise
                host.pci.give_up(function)
                self._problems.append(f"{path}: {type(exc).__name__}: {exc}")
                continue
            if device is not None:
                yield device

    def problems(self) -> Sequence[str]:
        """The faults of parents that were left out of the last pass."""
        return self._problems

    def named(self, functions: pci.Snapshot) -> Set[str]:
        """The parents that are PCI functions."""
        return self.exactness(functions).keys()

    def unmatched(self, functions: pci.Snapshot) -> Sequence[str]:
        """A sentence for each object of the list that selects no parent."""
        parents = sysfs.listing(str(_PARENTS))
        used = {id(self._spec(each)) for each in parents}
        sentence = "Object {} of [mdev] mdev_spec matches no parent on this host"
        return device_spec.selecting_nothing(self._specs, used, sentence)

    def entry(self, address: str, functions: pci.Snapshot) -> str | None:
        """The object of the list that selects a parent, or None."""
        spec = self._spec(address)
        return f"object {self._specs.index(spec) + 1} of [mdev] mdev_spec" if spec else None

    def _spec(self, parent: str) -> _MdevSpec | None:
        return next((spec for spec in self._specs if fnmatch.fnmatch(parent, spec.parent)), None)

    def _device(self, host: str, path: pathlib.Path, spec: _MdevSpec) -> base.Device | None:
        types = path / "mdev_supported_types"
        names = sorted(each.name for each in types.iterdir())
        kind = next((name for name in names if fnmatch.fnmatch(name, spec.mdev_type)), None)
        if kind is None:
            self._log_once("%s has no mediated devices of type %s", path.name, spec.mdev_type)
            return None
        created = mdev_handles.created(path.name, kind)
        total = _number(types / kind / "available_instances") + len(created)
        is_pci = sysfs.ADDRESS.fullmatch(path.name) is not None
        place = pci.split(path.name) if is_pci else {"parent": path.name}
        node = _text(path / "numa_node") or ""
        attributes: dict[str, str | int] = {
            "mdev_type": kind,
            **({"numa_node": int(node)} if node.isdigit() else {}),
            **({"pci_address": path.name} if is_pci else {}),
        }
        traits = ("OWNER_CYBORG", f"CUSTOM_MDEV_{kind}", *spec.traits)
        deployable = base.Deployable(
            name=f"{host}_{path.name}",
            resource_class=spec.resource_class,
            num_accelerators=total,
            attach_handles=mdev_handles.handles(kind, total, place),
            traits=trait_names.legal_names(traits),
            attributes=attributes,
            prepares=True,
            cleans=True,
            prepared=created,
        )
        return base.Device(
            type=spec.type,
            vendor=(_text(path / "vendor") or "unknown").removeprefix("0x"),
            model=_text(types / kind / "name") or kind,
            control_path=base.ControlPath(cpid_type="PCI" if is_pci else "MDEV", cpid_info=place),
            deployables=(deployable,),
        )


def _is_gone(path: pathlib.Path) -> bool:
    """True if a parent has vanished. One that is on the PCI bus has not."""
    return not (path.exists() or pathlib.Path(sysfs.DEVICES, path.name).exists())


def _spec(item: Any) -> _MdevSpec:
    if not isinstance(item, dict) or not isinstance(item.get("mdev_type"), str):
        raise ValueError("must be an object with mdev_type")  # noqa: TRY004 - one for every fault
    if unknown := sorted(item.keys() - _KEYS):
        raise ValueError(f"it has {unknown}; it may have {sorted(_KEYS)}")
    tags = device_spec.tags(item)
    return _MdevSpec(
        parent=str(item.get("parent", "*")).lower(),
        mdev_type=item["mdev_type"],
        resource_class=tags.resource_class or "CUSTOM_MDEV",
        traits=tags.traits,
        type=tags.type or "MDEV",
    )


def _number(path: pathlib.Path) -> int:
    text = path.read_bytes()
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{path} holds no number: {text[:40]!r}") from None


def _text(path: pathlib.Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return text.replace("\0", "").strip() or None
    except OSError:
        return None
