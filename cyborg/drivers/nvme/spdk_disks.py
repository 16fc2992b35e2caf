# SPDX-License-Identifier: Apache-2.0
"""The block devices of an SPDK target, and which disks of this host they are.

Nobody is given such a disk as a PCI function, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cyborg.drivers.nvme import spdk_rpc

_HERE = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bdev:
    """The block device of the target that has a namespace's data."""

    name: str
    block_size: int
    blocks: int
    product: str
    firmware: str
    problem: str | None

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Bdev:
        """The bdev of an answer.

        :raises KeyError, TypeError, ValueError, AttributeError: it is none
        """
        specific = answer.get("driver_specific") or {}
        paths = specific.get("nvme") or [{}]
        # Older targets, with one path to a controller, have no list here.
        controller = (paths[0] if isinstance(paths, list) else paths).get("ctrlr_data") or {}
        raid = specific.get("raid")
        return cls(
            name=answer["name"],
            block_size=int(answer["block_size"]),
            blocks=int(answer["num_blocks"]),
            product=str(
                controller.get("model_number") or answer.get("product_name") or ""
            ).strip(),
            firmware=str(controller.get("firmware_revision") or "").strip(),
            problem=None if raid is None else _raid_problem(answer["name"], raid),
        )


def of(address: str, bdevs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The bdevs of a target on this host, by the PCI functions of their disks.

    ``address`` is where the target is asked: one that is asked over the network is elsewhere.
    """
    place = spdk_rpc.parse(address)
    if isinstance(place, tuple) and place[0] not in _HERE:
        return {}
    return {function.lower(): bdev["name"] for bdev in bdevs for function in _functions(bdev)}


def _functions(bdev: Mapping[str, Any]) -> Iterator[str]:
    paths = (bdev.get("driver_specific") or {}).get("nvme") or []
    # Older targets, with one path to a controller, have no list here.
    for path in paths if isinstance(paths, list) else [paths]:
        trid = path.get("trid") or {}
        if place := path.get("pci_address") or (
            trid.get("trtype", "").upper() == "PCIE" and trid.get("traddr")
        ):
            yield place


def _raid_problem(name: str, raid: Mapping[str, Any]) -> str | None:
    if raid["state"] != "online":
        return f"RAID {name} is {raid['state']}"
    lost = int(raid["num_base_bdevs"]) - int(raid["num_base_bdevs_operational"])
    return f"RAID {name} has lost {lost} of its bdevs" if lost > 0 else None
