# SPDX-License-Identifier: Apache-2.0
"""PCI functions that Cyborg reports on a host and Nova's ``[pci] device_spec`` lists, too.

Each would be given to two guests: Nova and Cyborg do not know of each other's.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oslo_config import cfg

from cyborg.agent import discovery
from cyborg.common import errors
from cyborg.drivers import pci
from cyborg.drivers.pci import device_spec

_OPTION = "[pci] device_spec"
_OPTIONS = [
    cfg.MultiStrOpt("device_spec", default=[], deprecated_name="passthrough_whitelist"),
]
#: What a function is found by; the rest of an object is for Nova alone.
_MATCH = frozenset({"vendor_id", "product_id", "address", "devname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A function that both give out, or whose card or part the other does."""

    address: str
    driver: str
    #: The function that Nova lists, which may be the card of this one, or a part of it.
    listed: str
    spec: str


@dataclass(frozen=True, slots=True)
class ListedSpec:
    """An object of Nova's list, as text and as what it matches."""

    text: str
    spec: device_spec.Spec


def read(files: Sequence[str]) -> tuple[ListedSpec, ...]:
    """The lists of the option in Nova's configuration files.

    :raises errors.Misconfigured: a file cannot be read, or a value is wrong
    """
    conf = cfg.ConfigOpts()
    conf.register_opts(_OPTIONS, group="pci")
    try:
        conf(args=[], default_config_files=list(files), default_config_dirs=[])
        return device_spec.parse_objects(conf.pci.device_spec, _OPTION, _listed)
    except (cfg.Error, ValueError) as exc:
        raise errors.Misconfigured(f"Nova's configuration cannot be used: {exc}") from exc


def find(
    functions: pci.Snapshot, findings: discovery.Findings, nova: Sequence[ListedSpec]
) -> list[Shared]:
    """The devices that the drivers found and Nova lists."""
    found = []
    for driver, function in _reported(functions, findings):
        related = (function.address, *filter(None, [function.pf]), *function.vfs)
        for other in (functions[address] for address in related if address in functions):
            lists = next((each for each in nova if each.spec.matches(other, functions)), None)
            if lists is not None:
                found.append(
                    Shared(
                        address=function.address,
                        driver=driver,
                        listed=other.address,
                        spec=lists.text,
                    )
                )
                break
    return sorted(found, key=lambda each: each.address)


def _listed(item: object) -> ListedSpec:
    if not isinstance(item, dict):
        raise ValueError("must be a JSON object")  # noqa: TRY004 - one error for every fault
    match = {key: item[key] for key in item.keys() & _MATCH}
    return ListedSpec(json.dumps(item), device_spec.spec(match, _OPTION))


def _reported(
    functions: pci.Snapshot, findings: discovery.Findings
) -> Iterator[tuple[str, pci.Function]]:
    """Each driver, and the functions that it would give to guests."""
    for driver, devices in findings.devices.items():
        for device in devices:
            for handle in device.handles:
                with contextlib.suppress(KeyError):
                    yield driver, functions[pci.join(handle.attach_info)]
