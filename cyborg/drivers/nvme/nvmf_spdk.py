# SPDX-License-Identifier: Apache-2.0
"""Subsystems of an SPDK target, which this host reaches by NVMe over Fabrics.

Such a device is in no slot of the host. It exists as long as its target, which is queried by
JSON-RPC, and is identified by its NQN. A target permits hosts to connect by subsystem, so a
subsystem is what is given out: one attach handle, for one host at a time. That host may be any that
reaches the target: the consumer says its NQN, or else it is this host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import json
import logging
import pathlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg.conf import drivers as options
from cyborg.drivers import base, kept_facts, pci, trait_names
from cyborg.drivers.nvme import nvmf_keys, spdk_disks, spdk_rpc

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
_TARGET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
#: The kind of kept facts by which it is known for whom a subsystem is.
_GIVEN = "given"
#: And the disks of each target, which it has though it does not answer.
_DISKS = "disks"
#: More digits than any list of an operator fixes: a match that no other driver exceeds.
_MOST_EXACT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subsystem:
    """A subsystem as the target describes it, with the bdev of its first namespace."""

    nqn: str
    serial: str
    model: str
    any_host: bool
    #: Who may connect, each with the name of the key that it must have.
    hosts: Mapping[str, str | None]
    listeners: tuple[tuple[str, str, str], ...]
    namespaces: tuple[Mapping[str, Any], ...]
    bdev: spdk_disks.Bdev | None

    @classmethod
    def read(cls, answer: Mapping[str, Any], bdevs: Mapping[str, spdk_disks.Bdev]) -> _Subsystem:
        """The subsystem of an answer.

        :raises KeyError, TypeError, ValueError, AttributeError: it is none
        """
        namespaces = tuple(sorted(answer["namespaces"], key=lambda each: int(each["nsid"])))
        return cls(
            nqn=answer["nqn"],
            serial=str(answer.get("serial_number", "")).strip(),
            model=str(answer.get("model_number", "")).strip(),
            any_host=bool(answer["allow_any_host"]),
            hosts={host["nqn"]: host.get("dhchap_key") for host in answer["hosts"]},
            listeners=tuple(sorted(_listeners(answer["listen_addresses"]))),
            namespaces=namespaces,
            bdev=bdevs.get(namespaces[0]["bdev_name"]) if namespaces else None,
        )

    def attach_info(self) -> dict[str, str] | None:
        """The place that an initiator connects to, or None if there is none.

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
        others = sorted(self.hosts.keys() - {host_nqn})
        return f"host {others[0]} may connect to it" if others else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _GivenDisk:
    """For whom the driver has made a subsystem ready, or is about to: the handle, and the host."""

    handle: str
    host: str
    #: The ARQ that has the handle.
    arq: str
    #: The uuid of its key, which is that of the ARQ; None if the host connects without one.
    key: str | None = None
    #: Whether the host was let in, and whoever had the subsystem before is out.
    ready: bool = True


class _Target:
    """One target, by the options of its section. ``name`` is empty if there is only one."""

    def __init__(self, name: str, section: cfg.ConfigOpts.GroupAttr) -> None:
        spdk_rpc.parse(section.rpc_address)
        self.name = name
        self.options = section
        #: The bdevs that it had when it was last read, by the PCI functions of their disks.
        self.disks: dict[str, str] = {}

    @property
    def keys(self) -> nvmf_keys.ChapKeys | None:
        """The keys of the consumers; None if they need none."""
        return nvmf_keys.ChapKeys(self.options.key_dir) if self.options.key_dir else None

    def connected(self) -> contextlib.AbstractContextManager[spdk_rpc.SpdkConnection]:
        """A connection to it."""
        return spdk_rpc.connected(self.options.rpc_address, self.options.timeout)

    def path_of(self, nqn: str) -> dict[str, str]:
        """The facts that identify a subsystem of it on this host."""
        return {"subnqn": nqn} | ({"target": self.name} if self.name else {})

    def read(self, connection: spdk_rpc.SpdkConnection) -> list[_Subsystem]:
        """The subsystems that the operator wants, in the order of their NQNs.

        :raises SpdkError: the answer is not complete, so an absent subsystem need not be gone
        """
        answer = connection.call("nvmf_get_subsystems", **self._of_target())
        listed = connection.call("bdev_get_bdevs")
        try:
            bdevs = {bdev["name"]: spdk_disks.Bdev.read(bdev) for bdev in listed}
            self.disks = spdk_disks.of(self.options.rpc_address, listed)
            found = [
                _Subsystem.read(each, bdevs) for each in answer if each["subtype"] != "Discovery"
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise spdk_rpc.SpdkError(f"the answer has not what it should: {exc!r}") from exc
        wanted = (each for each in found if self._is_wanted(each.nqn))
        return sorted(wanted, key=lambda subsystem: subsystem.nqn)

    def one(self, connection: spdk_rpc.SpdkConnection, nqn: str) -> _Subsystem | None:
        """The subsystem of that NQN, if it has it."""
        return next((each for each in self.read(connection) if each.nqn == nqn), None)

    def add_host(
        self, connection: spdk_rpc.SpdkConnection, nqn: str, host: str, key: str | None
    ) -> None:
        """Let a host connect, with that key if there is one."""
        params = {"nqn": nqn, "host": host} | ({"dhchap_key": key} if key else {})
        connection.call("nvmf_subsystem_add_host", **self._of_target(**params))

    def remove_host(self, connection: spdk_rpc.SpdkConnection, nqn: str, host: str) -> None:
        """Let a host connect no more, which also ends its connections."""
        connection.call("nvmf_subsystem_remove_host", **self._of_target(nqn=nqn, host=host))

    def _is_wanted(self, nqn: str) -> bool:
        return any(fnmatch.fnmatchcase(nqn, glob) for glob in self.options.subsystems)

    def _of_target(self, **params: str) -> dict[str, str]:
        name = self.options.target_name
        return params | ({"tgt_name": name} if name else {})


class NvmfSpdkDriver:
    """Reports the NVMe subsystems of the target of ``[nvmf_spdk]``, or of all its ``targets``."""

    driver_api: ClassVar[int] = 1

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._options = conf.nvmf_spdk
        self._targets = {target.name: target for target in _targets(conf)}
        self._kept = kept_facts.KeptFacts(conf, "nvmf_spdk")
        self._warn_once = functools.cache(LOG.warning)
        #: By subsystem, held while it changes who has it.
        self._locks: dict[str, threading.Lock] = {}

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every subsystem that the options of its target name."""
        host_nqn = self._host_nqn()
        for target in self._targets.values():
            with target.connected() as connection:
                found = target.read(connection)
            self._kept.set(_DISKS, target.name, target.disks)
            for subsystem in found:
                name = "_".join(filter(None, (host.name, target.name, subsystem.nqn)))
                if len(name) > _NAME_MAX:
                    reason = f"{name} is too long a name"
                    self._warn_once("Subsystem %s is not reported: %s", subsystem.nqn, reason)
                else:
                    yield self._device(name, host_nqn, target, subsystem)

    def exactness(self, functions: pci.Snapshot) -> Mapping[str, int]:
        """The functions of disks that a target on this host has."""
        return {address: _MOST_EXACT for address in self._disks() if address in functions}

    def why_not_offered(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> base.Refusal | None:
        """That a target on this host has it."""
        bdev = self._disks().get(function.address)
        if bdev is None:
            return None
        reason = f"the SPDK target of this host has it, as bdev {bdev}"
        return base.Refusal(reason=reason, remedy="bdev_nvme_detach_controller of SPDK")

    def remember(self) -> None:
        """Write what must outlive the agent."""
        self._kept.save()

    def _disks(self) -> dict[str, str]:
        kept = self._kept.all(_DISKS)
        return {place: bdev for name in self._targets for place, bdev in kept.get(name, {}).items()}

    def prepare(self, handle: base.HeldHandle) -> None:
        """Permit the consumer's host to connect, if no other may."""
        target, nqn = self._target_of(handle), handle.attach_info["subnqn"]
        host = handle.consumer_nqn or self._host_nqn()
        with self._alone(target, nqn), target.connected() as connection:
            kept = self._given(target, nqn)
            if kept is not None and kept.arq != handle.arq:
                self._take_back(connection, target, nqn, kept)
                kept = None
            before = _unchanged(target.one(connection, nqn), handle)
            given = _use(target, handle, host, kept, before)
            if why := before.why_shared(given.host):
                raise _not_alone(nqn, why)
            # First, so that a host whose permission nobody has noted is another's.
            self._give(target, nqn, given)
            is_noted = kept is None or kept.host == given.host
            if not (given.ready and is_noted and given.host in before.hosts):
                if why := _permit(connection, target, given, before):
                    raise _not_alone(nqn, why)
                self._give(target, nqn, dataclasses.replace(given, ready=True))

    def access_key(self, handle: base.HeldHandle) -> str | None:
        """The DH-HMAC-CHAP key with which the consumer's host connects, if it needs one."""
        target = self._target_of(handle)
        given = self._given(target, handle.attach_info["subnqn"])
        keys = target.keys
        return keys.read(given.key) if keys and given and given.key else None

    def clean(self, handle: base.HeldHandle) -> None:
        """Forbid the consumer's host to connect, which also ends its connections.

        SPDK cannot erase what was written. So the handle stays dirty until its namespace is
        replaced, unless ``reuse_without_erasing`` is set for the target.
        """
        target, nqn = self._target_of(handle), handle.attach_info["subnqn"]
        with self._alone(target, nqn), target.connected() as connection:
            given = self._given(target, nqn)
            if given is None:
                # The agent may have lost what it had noted.
                host = handle.consumer_nqn or self._host_nqn()
                given = _GivenDisk(handle=handle.uuid, host=host, arq=handle.arq)
            self._take_back(connection, target, nqn, given)
            subsystem = target.one(connection, nqn)
        if not target.options.reuse_without_erasing:
            _refuse_unerased(handle, subsystem)

    def given(self) -> Mapping[str, str]:
        """The ARQs whose hosts were permitted to connect, by the uuids of their handles."""
        return {given.handle: given.arq for _, _, given in self._all_given()}

    def revoke(self, handle: str, arq: str) -> None:
        """Forbid the host of that ARQ to connect, unless another one has the subsystem by now."""
        for target, nqn, seen in self._all_given():
            if (seen.handle, seen.arq) != (handle, arq):
                continue
            with self._alone(target, nqn), target.connected() as connection:
                given = self._given(target, nqn)
                if given is not None and (given.handle, given.arq) == (handle, arq):
                    self._take_back(connection, target, nqn, given)

    def _take_back(
        self, connection: spdk_rpc.SpdkConnection, target: _Target, nqn: str, given: _GivenDisk
    ) -> None:
        """Forbid the host of a use to connect, forget its key, and then that it was given."""
        subsystem = target.one(connection, nqn)
        if subsystem is not None and given.host in subsystem.hosts:
            target.remove_host(connection, nqn, given.host)
            subsystem = target.one(connection, nqn)
        if subsystem is not None and given.host in subsystem.hosts:
            raise spdk_rpc.SpdkError(f"subsystem {nqn} still lets host {given.host} connect")
        if keys := target.keys:
            keys.remove(connection, given.arq)
        self._give(target, nqn, None)

    def _device(
        self, name: str, host_nqn: str, target: _Target, subsystem: _Subsystem
    ) -> base.Device:
        nqn, handles, attributes = subsystem.nqn, _handles(subsystem), _attributes(subsystem)
        transports = [f"CUSTOM_NVMF_{handle.attach_info['trtype']}" for handle in handles]
        given = self._given(target, nqn)
        is_ready = given is not None and given.ready and given.host in subsystem.hosts
        deployable = base.Deployable(
            name=name,
            resource_class=_RESOURCE_CLASS,
            num_accelerators=len(handles),
            attach_handles=handles,
            traits=trait_names.legal_names(transports),
            attributes=attributes,
            prepares=True,
            cleans=True,
            clean_erases=not target.options.reuse_without_erasing,
            prepared=(given.handle,) if given is not None and is_ready else (),
        )
        problem = subsystem.why_unhealthy(host_nqn if given is None else given.host)
        path = base.ControlPath(cpid_type=_CONTROL_PATH_TYPE, cpid_info=target.path_of(nqn))
        return base.Device(
            type="NVME",
            vendor="SPDK",
            model=subsystem.model or "NVMe subsystem",
            std_board_info=json.dumps({"serial_number": subsystem.serial}),
            control_path=path,
            deployables=(deployable,),
            unhealthy=f"subsystem {nqn}: {problem}" if problem else None,
        )

    def _target_of(self, handle: base.HeldHandle) -> _Target:
        name = handle.control_path.cpid_info.get("target", "")
        target = self._targets.get(name)
        if target is None:
            raise spdk_rpc.SpdkError(f"target {name!r} is not in [nvmf_spdk] targets")
        return target

    def _alone(self, target: _Target, nqn: str) -> threading.Lock:
        """Held to change who has a subsystem while nobody else does."""
        return self._locks.setdefault(_key_of(target, nqn), threading.Lock())

    def _given(self, target: _Target, nqn: str) -> _GivenDisk | None:
        kept = self._kept.get(_GIVEN, _key_of(target, nqn))
        return None if kept is None else _GivenDisk(**base.known_values(_GivenDisk, kept))

    def _all_given(self) -> Iterator[tuple[_Target, str, _GivenDisk]]:
        """Every use that is kept, of the targets that there are."""
        for key in self._kept.all(_GIVEN):
            path = json.loads(key)
            target = self._targets.get(path.get("target", ""))
            given = self._given(target, path["subnqn"]) if target is not None else None
            if target is not None and given is not None:
                yield target, path["subnqn"], given

    def _give(self, target: _Target, nqn: str, given: _GivenDisk | None) -> None:
        """Keep for whom a subsystem is: who may connect is nobody else's then."""
        value = None if given is None else dataclasses.asdict(given)
        self._kept.set(_GIVEN, _key_of(target, nqn), value)
        self._kept.save()

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


def _targets(conf: cfg.ConfigOpts) -> Iterator[_Target]:
    """The target of ``[nvmf_spdk]``, or those that it names.

    :raises ValueError: one has no address or no name, or two are the same
    """
    names = list(dict.fromkeys(conf.nvmf_spdk.targets))
    if not names:
        yield _Target("", conf.nvmf_spdk)
    known: dict[tuple[str, str | None], str] = {}
    for name in names:
        if not _TARGET_NAME.fullmatch(name):
            raise ValueError(f"[nvmf_spdk] targets: {name!r} must have letters and digits only")
        section = options.register_nvmf_target(conf, name)
        other = known.setdefault((section.rpc_address, section.target_name), name)
        if other != name:
            raise ValueError(f"[nvmf_spdk_{name}] and [nvmf_spdk_{other}] name the same target")
        yield _Target(name, section)


def _key_of(target: _Target, nqn: str) -> str:
    """Under which key it is kept for whom a subsystem is."""
    return base.canonical_json(target.path_of(nqn))


def _unchanged(subsystem: _Subsystem | None, handle: base.HeldHandle) -> _Subsystem:
    """The subsystem, if it is what the handle says."""
    if subsystem is None or subsystem.attach_info() != dict(handle.attach_info):
        nqn = handle.attach_info["subnqn"]
        raise spdk_rpc.SpdkError(f"subsystem {nqn} is not what it was, or gone")
    return subsystem


def _not_alone(nqn: str, why: str) -> spdk_rpc.SpdkError:
    return spdk_rpc.SpdkError(f"no guest may have subsystem {nqn}: {why}")


def _use(
    target: _Target,
    handle: base.HeldHandle,
    host: str,
    kept: _GivenDisk | None,
    before: _Subsystem,
) -> _GivenDisk:
    """The use that a handle is to be made ready for; ``kept`` is what is known of it already."""
    keys, arq = target.keys, handle.arq
    if kept is not None:
        # Its host may have another name by now, and is connected under the one of then.
        host = kept.host if kept.host in before.hosts else host
        # Of what is in use it was said that it is ready, even if that could not be written down.
        is_ready = kept.ready or handle.in_use
        return dataclasses.replace(kept, handle=handle.uuid, host=host, ready=is_ready)
    if handle.in_use and host in before.hosts:
        # The agent has lost what it had noted of it: with which key it is connected, or with none.
        key = arq if keys and keys.read(arq) else None
        return _GivenDisk(handle=handle.uuid, host=host, arq=arq, key=key)
    return _GivenDisk(
        handle=handle.uuid, host=host, arq=arq, key=arq if keys else None, ready=False
    )


def _permit(
    connection: spdk_rpc.SpdkConnection, target: _Target, given: _GivenDisk, before: _Subsystem
) -> str | None:
    """Let the consumer's host connect; return why it may not, after all."""
    nqn, key = before.nqn, None
    if given.host in before.hosts:
        # Whoever had it before could go on, or connect with another key, or with none.
        target.remove_host(connection, nqn, given.host)
    if (keys := target.keys) and given.key:
        if not given.ready:
            # What is there is of a use that was never cleaned, or nobody was told of it.
            keys.remove(connection, given.key)
        key = keys.add(connection, given.key)
    target.add_host(connection, nqn, given.host, key)
    # Another host's agent may have done the same meanwhile: there is no atomic command.
    after = target.one(connection, nqn)
    shared = "it is gone" if after is None else after.why_shared(given.host)
    if after is not None and shared:
        target.remove_host(connection, nqn, given.host)
    return shared


def _refuse_unerased(handle: base.HeldHandle, subsystem: _Subsystem | None) -> None:
    """Return if the namespace of a handle has been replaced by another one.

    :raises SpdkError: it has not, or that is not known
    """
    nqn = handle.attach_info["subnqn"]
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
    facts: dict[str, str | int] = {"serial": subsystem.serial}
    bdev = subsystem.bdev
    if bdev is not None:
        facts |= {
            "capacity_mib": bdev.block_size * bdev.blocks // _MIB,
            "block_size": str(bdev.block_size),
            "bdev": bdev.name,
            "product": bdev.product,
            "firmware": bdev.firmware,
        }
    return {key: value for key, value in facts.items() if value != ""}
