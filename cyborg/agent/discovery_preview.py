# SPDX-License-Identifier: Apache-2.0
"""A preview of the agent's report of this host, as a table or JSON. Nothing is sent or written."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.agent import (
    cleaning,
    discovery,
    node_name,
    not_offered,
    nova_devices,
    opened,
    sriov,
)
from cyborg.drivers import base, pci, registry

_COLUMNS = ("DRIVER", "DEVICE", "PROVIDER", "INVENTORY", "TRAITS", "PROGRAM", "HANDLES")
#: The most handles that a table shows of one provider.
_HANDLES_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """One pass: what each driver found, and their errors."""

    host: str
    node: str
    findings: discovery.Findings
    #: The objects of the operator's lists that select providers, by driver and provider.
    entries: Mapping[tuple[str, str], str]
    #: The errors of drivers, and what objects of their lists select nothing.
    said: Mapping[str, str]
    #: Sentences about changes that the agent would make on the host first.
    changes: Sequence[str]
    #: Accelerators that no driver offers.
    not_offered: Sequence[not_offered.UnofferedFunction]
    #: What Nova would give out, too.
    nova: Sequence[nova_devices.Shared]

    @property
    def failed(self) -> bool:
        """True if any driver has an error, or a device would be given out twice."""
        return bool(self.findings.errors or self.nova)


def make(conf: cfg.ConfigOpts, nova_files: Sequence[str] = ()) -> Preview:
    """Make a pass with the drivers of ``[agent] enabled_drivers``.

    :raises errors.Misconfigured: one of Nova's files cannot be used
    """
    nova_lists = nova_devices.read(nova_files)
    loaded = registry.load(conf)
    look = opened.Opened(conf, asks=False).look
    passes = discovery.Discovery(
        conf.host, loaded.drivers, timeout=conf.agent.driver_timeout, look=look
    )
    found = cleaning.noted(conf, passes.run(), loaded.drivers)
    errors = {**loaded.errors, **found.errors}
    findings = dataclasses.replace(found, errors=errors)
    # Without sysfs there is nothing to list; a driver that needs it has an error.
    functions = pci.Snapshot(())
    with contextlib.suppress(OSError):
        functions = pci.scan()
    others = registry.load_others(conf)
    left_out = not_offered.find(functions, findings, loaded.drivers, others)
    shared = nova_devices.find(functions, findings, nova_lists)
    return Preview(
        host=conf.host,
        node=node_name.of(conf),
        findings=findings,
        entries=dict(_entries(findings, loaded.drivers, functions)),
        said=not_offered.joined(errors, not_offered.remarks(findings, loaded.drivers)),
        changes=sriov.preview(conf),
        not_offered=left_out,
        nova=shared,
    )


def as_json(preview: Preview) -> str:
    """The preview as a JSON document."""
    document = {
        "host": preview.host,
        "node": preview.node,
        "errors": preview.said,
        "changes": preview.changes,
        "devices": [
            {"driver": driver, **_plain(preview, driver, device)}
            for driver, device in _devices(preview)
        ],
        "not_offered": [dataclasses.asdict(each) for each in preview.not_offered],
        "given_out_by_nova": [dataclasses.asdict(each) for each in preview.nova],
    }
    return json.dumps(document, indent=2)


def as_table(preview: Preview) -> str:
    """The preview as a table with a row a provider, and below it the problems."""
    lines = [f"Host {preview.host}, node {preview.node}", ""]
    rows = [
        _row(preview, driver, device, deployable)
        for driver, device in _devices(preview)
        for deployable in device.deployables
    ]
    lines += _aligned(rows) if rows else ["No driver found a device."]
    wrong = [
        f"Device {device.control_path.place} is unhealthy: {device.unhealthy}"
        for _, device in _devices(preview)
        if device.unhealthy is not None
    ]
    wrong += [f"First, by [agent] sriov_spec: {sentence}" for sentence in preview.changes]
    wrong += [registry.told(name, sentence) for name, sentence in preview.said.items()]
    if preview.not_offered:
        said = not_offered.lines(preview.not_offered)
        lines += ["", "Not offered:", *(f"  {each}" for each in said)]
    if preview.nova:
        lines += ["", "Given out by Nova, too:", *map(_twice, preview.nova)]
    return "\n".join([*lines, "", *wrong] if wrong else lines)


def _twice(shared: nova_devices.Shared) -> str:
    other = "it" if shared.listed == shared.address else shared.listed
    return (
        f"  {shared.address}: {shared.driver} reports it, and Nova's [pci] device_spec "
        f"{shared.spec} lists {other}"
    )


def _devices(preview: Preview) -> Iterator[tuple[str, base.Device]]:
    for driver, devices in preview.findings.devices.items():
        for device in devices:
            yield driver, device


def _entries(
    findings: discovery.Findings, drivers: Mapping[str, base.Driver], functions: pci.Snapshot
) -> Iterator[tuple[tuple[str, str], str]]:
    """The object of a list that selects each provider, by the driver and its name."""
    for name, found in findings.devices.items():
        driver = drivers[name]
        if not isinstance(driver, base.Listing):
            continue
        parts = [(device, part) for device in found for part in device.deployables]
        for device, part in parts:
            # A part of a card may be listed by itself: the last word counts.
            infos = [each.attach_info for each in part.attach_handles]
            for info in (device.control_path.cpid_info, *infos[:1]):
                with contextlib.suppress(KeyError):
                    if entry := driver.entry(pci.join(info), functions):
                        yield (name, part.name), entry


def _plain(preview: Preview, driver: str, device: base.Device) -> dict[str, Any]:
    """A device as it is reported, with its deployables as the providers they become."""
    plain = device.to_wire()
    providers = []
    for deployable in plain.pop("deployables"):
        total = deployable.pop("num_accelerators")
        reserved = total if device.unhealthy is not None else 0
        inventory = {deployable.pop("resource_class"): {"total": total, "reserved": reserved}}
        name = deployable.pop("name")
        entry = preview.entries.get((driver, name))
        providers.append({"name": name, "entry": entry, "inventory": inventory, **deployable})
    return {**plain, "providers": providers}


def _row(
    preview: Preview, driver: str, device: base.Device, deployable: base.Deployable
) -> list[list[str]]:
    entry = preview.entries.get((driver, deployable.name))
    return [
        [driver, *([f"by {entry}"] if entry else [])],
        [device.control_path.place, f"{device.type} {device.vendor} {device.model}"],
        [deployable.name],
        [f"{deployable.resource_class} {deployable.num_accelerators}"],
        list(deployable.traits),
        _program(deployable),
        _handles(deployable.attach_handles),
    ]


def _program(deployable: base.Deployable) -> list[str]:
    """The program mode, and the function that the hardware shows as loaded."""
    if deployable.program_mode is None:
        return []
    shown = {None: "function unknown", "": "no function"}
    return [deployable.program_mode, shown.get(deployable.function, str(deployable.function))]


def _handles(handles: Sequence[base.AttachHandle]) -> list[str]:
    names = [f"{handle.attach_type} {base.place(handle.attach_info)}" for handle in handles]
    if len(names) <= _HANDLES_SHOWN:
        return names
    return [*names[: _HANDLES_SHOWN - 1], f"and {len(names) - _HANDLES_SHOWN + 1} more"]


def _aligned(rows: Sequence[Sequence[Sequence[str]]]) -> Iterator[str]:
    """The lines of a table. A cell is a list of lines. Empty columns are left out."""
    shown = [number for number in range(len(_COLUMNS)) if any(row[number] for row in rows)]
    table = [[row[number] for number in shown] for row in [[[name] for name in _COLUMNS], *rows]]
    columns = zip(*table, strict=True)
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    for row in table:
        for line in itertools.zip_longest(*row, fillvalue=""):
            cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
            yield "  ".join(cells).rstrip()
