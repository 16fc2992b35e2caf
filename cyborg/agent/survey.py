# SPDX-License-Identifier: Apache-2.0
"""What the drivers of a host see and would report, as text: nothing is sent and nothing written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.agent import discovery, sriov
from cyborg.drivers import base, pci, registry

_ADDRESS = frozenset({"domain", "bus", "device", "function"})
_COLUMNS = ("DRIVER", "DEVICE", "PROVIDER", "INVENTORY", "TRAITS", "PROGRAM", "HANDLES")
#: The most handles that a table shows of one provider.
_HANDLES_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """One pass: what each driver found, and why others found nothing."""

    host: str
    node: str
    findings: discovery.Findings
    #: What the agent would change of the host first, and what not.
    changes: Sequence[str]

    @property
    def failed(self) -> bool:
        """Whether anything is wrong with any driver."""
        return bool(self.findings.errors)


def make(conf: cfg.ConfigOpts) -> Survey:
    """Make a pass of the drivers of ``[agent] enabled_drivers``."""
    loaded = registry.load(conf)
    passes = discovery.Discovery(conf.host, loaded.drivers, timeout=conf.agent.driver_timeout)
    found = passes.run()
    return Survey(
        host=conf.host,
        node=conf.agent.resource_provider_name or conf.host,
        findings=discovery.Findings(
            devices=found.devices, errors={**loaded.errors, **found.errors}
        ),
        changes=sriov.preview(conf),
    )


def as_json(survey: Survey) -> str:
    """The survey as a JSON document."""
    document = {
        "host": survey.host,
        "node": survey.node,
        "errors": survey.findings.errors,
        "changes": survey.changes,
        "devices": [
            {"driver": driver, **_plain(device)} for driver, device in _devices(survey)
        ],
    }
    return json.dumps(document, indent=2)


def as_table(survey: Survey) -> str:
    """The survey for people: a row a provider, and below it what is wrong."""
    lines = [f"Host {survey.host}, node {survey.node}", ""]
    rows = [
        _row(driver, device, deployable)
        for driver, device in _devices(survey)
        for deployable in device.deployables
    ]
    lines += _aligned(rows) if rows else ["No driver found a device."]
    wrong = [
        f"Device {_path(device)} is unhealthy: {device.unhealthy}"
        for _, device in _devices(survey)
        if device.unhealthy is not None
    ]
    wrong += [f"First, by [agent] sriov_spec: {sentence}" for sentence in survey.changes]
    wrong += [f"Driver {name}: {sentence}" for name, sentence in survey.findings.errors.items()]
    return "\n".join([*lines, "", *wrong] if wrong else lines)


def _devices(survey: Survey) -> Iterator[tuple[str, base.Device]]:
    for driver, devices in survey.findings.devices.items():
        for device in devices:
            yield driver, device


def _plain(device: base.Device) -> dict[str, Any]:
    """A device as it is reported, with its deployables as the providers they become."""
    plain = device.to_wire()
    providers = []
    for deployable in plain.pop("deployables"):
        total = deployable.pop("num_accelerators")
        reserved = total if device.unhealthy is not None else 0
        inventory = {deployable.pop("resource_class"): {"total": total, "reserved": reserved}}
        providers.append({"name": deployable.pop("name"), "inventory": inventory, **deployable})
    return {**plain, "providers": providers}


def _row(driver: str, device: base.Device, deployable: base.Deployable) -> list[list[str]]:
    return [
        [driver],
        [_path(device), f"{device.type} {device.vendor} {device.model}"],
        [deployable.name],
        [f"{deployable.resource_class} {deployable.num_accelerators}"],
        list(deployable.traits),
        _program(deployable),
        _handles(deployable.attach_handles),
    ]


def _program(deployable: base.Deployable) -> list[str]:
    """How far a program reaches, and what the hardware shows as loaded."""
    if deployable.program_mode is None:
        return []
    shown = {None: "function unknown", "": "no function"}
    return [deployable.program_mode, shown.get(deployable.function, str(deployable.function))]


def _path(device: base.Device) -> str:
    path = device.control_path
    return f"{path.cpid_type} {_place(path.cpid_info)}"


def _handles(handles: Sequence[base.AttachHandle]) -> list[str]:
    names = [f"{handle.attach_type} {_place(handle.attach_info)}" for handle in handles]
    if len(names) <= _HANDLES_SHOWN:
        return names
    return [*names[: _HANDLES_SHOWN - 1], f"and {len(names) - _HANDLES_SHOWN + 1} more"]


def _place(info: Mapping[str, str]) -> str:
    """A PCI address with what else there is, in words."""
    if not info.keys() >= _ADDRESS:
        return " ".join(info.values())
    rest = [value for key, value in info.items() if key not in _ADDRESS]
    return " ".join([pci.join(info), *rest])


def _aligned(rows: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """Lines of a table with these cells, each of which has lines of its own.

    What no provider has is no column.
    """
    shown = [number for number in range(len(_COLUMNS)) if any(row[number] for row in rows)]
    table = [[row[number] for number in shown] for row in [[[name] for name in _COLUMNS], *rows]]
    columns = zip(*table, strict=True)
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    for row in table:
        for line in itertools.zip_longest(*row, fillvalue=""):
            cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
            yield "  ".join(cells).rstrip()
