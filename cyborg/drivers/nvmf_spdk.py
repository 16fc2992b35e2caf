# SPDX-License-Identifier: Apache-2.0
"""Subsystems of an SPDK target, which this host reaches by NVMe over Fabrics.

Such a device is in no slot of the host. It exists as long as its target, which is queried by
JSON-RPC, and is identified by its NQN. A target permits hosts to connect by subsystem, so a
subsystem is what is given out: one attach handle, for one host at a time.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import logging
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg

from cyborg.drivers import base, spdk_rpc, trait_names

LOG = logging.getLogger(__name__)

ATTACH_TYPE = "NVMF"
_CONTROL_PATH_TYPE = "NVMF"
_RESOURCE_CLASS = "CUSTOM_NVMF"
#: The file of the host's NVMe tools with the name under which it connects.
_HOST_NQN = pathlib.Path("/etc/nvme/hostnqn")
#: Transports that work over a network, and not only between processes of one host.
_TRANSPORTS = frozenset({"TCP", "RDMA", "FC"})
_MIB = 1024 * 1024
#: The longest name of a provider in Placement, and the longest attach handle in the database.
_NAME_MAX = 200
_INFO_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bdev:
    """The block device of the target that has a namespace's data."""

    name: str
    block_size: int
    blocks: int
    product: str
    firmware: str
    problem: str | None

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> _Bdev:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subsystem:
    """A subsystem as the target describes it, with the bdev of its first namespace."""

    nqn: str
    serial: str
    model: str
    any_host: bool
    hosts: frozenset[str]
    listeners: tuple[tuple[str, str, str], ...]
    namespaces: tuple[Mapping[str, Any], ...]
    bdev: _Bdev | None

    @classmethod
    def read(cls, answer: Mapping[str, Any], bdevs: Mapping[str, _Bdev]) -> _Subsystem:
        """The subsystem of an answer.

        :raises KeyError, TypeError, ValueError, AttributeError: it is none
        """
        namespaces = tuple(sorted(answer["namespaces"], key=lambda each: int(each["nsid"])))
        return cls(
            nqn=answer["nqn"],
            serial=str(answer.get("serial_number", "")).strip(),
            model=str(answer.get("model_number", "")).strip(),
            any_host=bool(answer["allow_any_host"]),
            hosts=frozenset(host["nqn"] for host in answer["hosts"]),
            listeners=tuple(sorted(_listeners(answer["listen_addresses"]))),
            namespaces=namespaces,
            bdev=bdevs.get(namespaces[0]["bdev_name"]) if namespaces else None,
        )

    def attach_info(self) -> dict[str, str] | None:
        """What an initiator connects to, or None if there is nothing to connect to.

        It has the namespace's uuid, so a namespace that replaces another is a new handle.
        """
        if not self.listeners or not self.namespaces:
            return None
        transport, address, service = self.listeners[0]
        namespace = self.namespaces[0]
        return {
            "trtype": transport,
            "traddr": address,
            "trsvcid": service,
            "subnqn": self.nqn,
            "nsid": str(namespace["nsid"]),
            "uuid": str(namespace.get("uuid") or namespace.get("nguid") or ""),
        }

    def why_unhealthy(self, host_nqn: str) -> str | None:
        """Why the subsystem is unhealthy, or None."""
        info = self.attach_info()
        if not self.namespaces:
            return "it has no namespace"
        if len(self.namespaces) > 1:
            return f"it has {len(self.namespaces)} namespaces, which no host sees one by one"
        if info is None:
            return "it listens on no network"
        if len(base.canonical_json(info)) > _INFO_MAX:
            return "NQN and address are too long for an attach handle"
        if self.bdev is None:
            return f"bdev {self.namespaces[0]['bdev_name']} is gone"
        return self.why_shared(host_nqn) or self.bdev.problem

    def why_shared(self, host_nqn: str) -> str | None:
        """A host other than that one that may connect, or None."""
        if self.any_host:
            return "any host may connect to it"
        others = sorted(self.hosts - {host_nqn})
        return f"host {others[0]} may connect to it" if others else None


class NvmfSpdkDriver:
    """Reports the NVMe subsystems of the target at ``[nvmf_spdk] rpc_address``."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._options = conf.nvmf_spdk
        spdk_rpc.parse(self._options.rpc_address)
        #: The uuid of the handle that was prepared last, by NQN. It is lost when the agent ends;
        #: each handle of a guest is prepared again then, which changes nothing.
        self._prepared: dict[str, str] = {}
        self._logged: set[str] = set()

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every subsystem that ``[nvmf_spdk] subsystems`` names."""
        host_nqn = self._host_nqn()
        with self._connected() as target:
            found = self._read(target)
        for subsystem in found:
            name = f"{host.name}_{subsystem.nqn}"
            if len(name) > _NAME_MAX:
                reason = f"{name} is too long a name"
                self._log_once(f"Subsystem {subsystem.nqn} is not reported: {reason}")
            else:
                yield self._device(name, host_nqn, subsystem)

    def prepare(self, handle: base.HeldHandle) -> None:
        """Permit this host to connect, if no other may."""
        host_nqn, nqn = self._host_nqn(), handle.attach_info["subnqn"]
        with self._connected() as target:
            before = self._one(target, nqn)
            if before is None or before.attach_info() != dict(handle.attach_info):
                raise spdk_rpc.SpdkError(f"subsystem {nqn} is not what it was, or gone")
            shared = before.why_shared(host_nqn)
            if shared is None and host_nqn not in before.hosts:
                target.call("nvmf_subsystem_add_host", **self._of_target(nqn=nqn, host=host_nqn))
                # Another host's agent may have done the same meanwhile: there is no atomic command.
                after = self._one(target, nqn)
                shared = "it is gone" if after is None else after.why_shared(host_nqn)
                if after is not None and shared:
                    self._remove(target, nqn, host_nqn)
            if shared:
                raise spdk_rpc.SpdkError(f"no guest may have subsystem {nqn}: {shared}")
        self._prepared[nqn] = handle.uuid

    def clean(self, handle: base.HeldHandle) -> None:
        """Forbid this host to connect, which also ends its connections.

        SPDK cannot erase what was written. So the handle stays dirty until its namespace is
        replaced, unless ``[nvmf_spdk] reuse_without_erasing`` is set.
        """
        host_nqn, nqn = self._host_nqn(), handle.attach_info["subnqn"]
        self._prepared.pop(nqn, None)
        with self._connected() as target:
            subsystem = self._one(target, nqn)
            if subsystem is not None and host_nqn in subsystem.hosts:
                self._remove(target, nqn, host_nqn)
                subsystem = self._one(target, nqn)
        if subsystem is not None and host_nqn in subsystem.hosts:
            raise spdk_rpc.SpdkError(f"subsystem {nqn} still lets host {host_nqn} connect")
        if self._options.reuse_without_erasing:
            return
        namespaces = subsystem.namespaces if subsystem is not None else ()
        kept = {str(each.get("uuid") or each.get("nguid") or "") for each in namespaces}
        if not kept:
            # While the target starts, a namespace may be missing and come back unchanged.
            raise spdk_rpc.SpdkError(f"subsystem {nqn} is gone, or has no namespace at present")
        if handle.attach_info["uuid"] in kept:
            raise spdk_rpc.SpdkError(
                f"namespace {handle.attach_info['uuid']} of {nqn} still has what was written to "
                "it; replace it by one with another UUID"
            )

    def _device(self, name: str, host_nqn: str, subsystem: _Subsystem) -> base.Device:
        nqn, handles, attributes = subsystem.nqn, _handles(subsystem), _attributes(subsystem)
        transports = [f"CUSTOM_NVMF_{handle.attach_info['trtype']}" for handle in handles]
        ready = self._prepared.get(nqn) if host_nqn in subsystem.hosts else None
        deployable = base.Deployable(
            name=name,
            resource_class=_RESOURCE_CLASS,
            num_accelerators=len(handles),
            attach_handles=handles,
            traits=trait_names.legal_with_facts(transports, attributes),
            attributes=attributes,
            prepares=True,
            cleans=True,
            clean_erases=not self._options.reuse_without_erasing,
            prepared=(ready,) if ready else (),
        )
        problem = subsystem.why_unhealthy(host_nqn)
        return base.Device(
            type="NVME",
            vendor="SPDK",
            model=subsystem.model or "NVMe subsystem",
            std_board_info=json.dumps({"serial_number": subsystem.serial}),
            control_path=base.ControlPath(cpid_type=_CONTROL_PATH_TYPE, cpid_info={"subnqn": nqn}),
            deployables=(deployable,),
            unhealthy=f"subsystem {nqn}: {problem}" if problem else None,
        )

    def _read(self, target: spdk_rpc.Connection) -> list[_Subsystem]:
        """The subsystems that the operator wants, in the order of their NQNs.

        :raises SpdkError: the answer is not complete, so an absent subsystem need not be gone
        """
        answer = target.call("nvmf_get_subsystems", **self._of_target())
        listed = target.call("bdev_get_bdevs")
        try:
            bdevs = {bdev["name"]: _Bdev.read(bdev) for bdev in listed}
            found = [
                _Subsystem.read(each, bdevs) for each in answer if each["subtype"] != "Discovery"
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise spdk_rpc.SpdkError(f"the answer has not what it should: {exc!r}") from exc
        wanted = (each for each in found if self._is_wanted(each.nqn))
        return sorted(wanted, key=lambda subsystem: subsystem.nqn)

    def _one(self, target: spdk_rpc.Connection, nqn: str) -> _Subsystem | None:
        return next((each for each in self._read(target) if each.nqn == nqn), None)

    def _is_wanted(self, nqn: str) -> bool:
        return any(fnmatch.fnmatchcase(nqn, glob) for glob in self._options.subsystems)

    def _remove(self, target: spdk_rpc.Connection, nqn: str, host_nqn: str) -> None:
        target.call("nvmf_subsystem_remove_host", **self._of_target(nqn=nqn, host=host_nqn))

    def _connected(self) -> contextlib.AbstractContextManager[spdk_rpc.Connection]:
        return spdk_rpc.connected(self._options.rpc_address, self._options.timeout)

    def _of_target(self, **params: str) -> dict[str, str]:
        name = self._options.target_name
        return params | ({"tgt_name": name} if name else {})

    def _host_nqn(self) -> str:
        nqn = self._options.host_nqn
        if not nqn:
            try:
                nqn = _HOST_NQN.read_text(encoding="utf-8").strip()
            except OSError as exc:
                raise spdk_rpc.SpdkError(
                    f"the host has no NQN: {exc}; set [nvmf_spdk] host_nqn"
                ) from exc
        return str(nqn)

    def _log_once(self, sentence: str) -> None:
        """Log once, and not at every pass."""
        if sentence not in self._logged:
            self._logged.add(sentence)
            LOG.warning("%s", sentence)


def _listeners(addresses: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for each in addresses:
        transport = each["trtype"].upper()
        if transport in _TRANSPORTS:
            yield transport, each["traddr"], str(each.get("trsvcid", ""))


def _handles(subsystem: _Subsystem) -> tuple[base.AttachHandle, ...]:
    info = subsystem.attach_info()
    if info is None or len(base.canonical_json(info)) > _INFO_MAX:
        return ()
    return (base.AttachHandle(attach_type=ATTACH_TYPE, attach_info=info),)


def _attributes(subsystem: _Subsystem) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {}
    if subsystem.serial:
        attributes["serial"] = subsystem.serial
    bdev = subsystem.bdev
    if bdev is not None:
        attributes["capacity_mib"] = bdev.block_size * bdev.blocks // _MIB
        attributes["block_size"] = str(bdev.block_size)
        attributes["bdev"] = bdev.name
        named = {"product": bdev.product, "firmware": bdev.firmware}
        attributes |= {key: value for key, value in named.items() if value}
    return attributes


def _raid_problem(name: str, raid: Mapping[str, Any]) -> str | None:
    if raid["state"] != "online":
        return f"RAID {name} is {raid['state']}"
    lost = int(raid["num_base_bdevs"]) - int(raid["num_base_bdevs_operational"])
    return f"RAID {name} has lost {lost} of its bdevs" if lost > 0 else None
