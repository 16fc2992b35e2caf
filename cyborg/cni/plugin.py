# SPDX-License-Identifier: Apache-2.0
"""The commands of CNI: give a function of an allocation to a container, and take it back."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from oslo_config import cfg

from cyborg.cni import functions, links, protocol
from cyborg.cni.attachments import Attachment, AttachmentDamaged, AttachmentFiles
from cyborg.cni.protocol import Failed, PluginCall
from cyborg.common import allocation_states as states
from cyborg.common import errors
from cyborg.peers import accelerators, answers

GROUP = "cni"
#: The type of consumers that are made here.
_CONSUMER_TYPE = "CNI"
#: Seconds between two looks at an allocation that is not active yet.
_PAUSE = 0.5

_Document = Mapping[str, Any]


class Plugin:
    """The plugin on a host."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._until = time.monotonic() + conf.cni.command_timeout
        self._api = accelerators.Api(conf, GROUP, self._until)
        self._folder = AttachmentFiles(conf.cni.state_dir)
        self._commands: dict[str, Callable[[PluginCall], _Document | None]] = {
            "ADD": self._add,
            "CHECK": self._check,
            "DEL": self._delete,
            "GC": self._collect,
            "STATUS": self._status,
        }

    def answer(self, request: PluginCall) -> _Document | None:
        """The answer to a command; None if it has none.

        :raises Failed: it failed; what could not be undone is in a file, for DEL and GC
        """
        try:
            self._folder.prepare()
            with answers.reading("Cyborg"):
                return self._commands[request.command](request)
        except Failed:
            raise
        except (errors.CyborgError, OSError) as exc:
            ours = isinstance(exc, (links.LinkFailed, AttachmentDamaged, OSError))
            number = protocol.IO_FAILED if ours else protocol.TRY_LATER
            if request.command == "STATUS":
                number = protocol.NOT_READY
            raise Failed(number, str(exc)) from exc

    def _add(self, request: PluginCall) -> _Document:
        if self._found(request) is not None:
            told = "The container has this interface already; delete it first."
            raise Failed(protocol.NOT_AS_GIVEN, told)
        identity = links.identity(request.netns)
        if identity is None:
            raise Failed(protocol.BAD_ENVIRONMENT, f"CNI_NETNS: there is no {request.netns}.")
        named = request.config.get("allocation")
        attachment = Attachment(
            network=request.network,
            container=request.container,
            ifname=request.ifname,
            netns=request.netns,
            netns_identity=identity,
            allocation=named or str(uuid.uuid4()),
            is_own=named is None,
        )
        self._folder.save(attachment)
        try:
            return protocol.result(request, self._give(request, attachment))
        except Exception:
            # The reason is what failed first; the file is kept if this fails, too.
            with contextlib.suppress(errors.CyborgError, OSError):
                self._undo(self._found(request) or attachment)
            raise

    def _give(self, request: PluginCall, attachment: Attachment) -> functions.NicFunction:
        allocation = self._allocation(request, attachment)
        with self._folder.locked():
            function = self._choose(allocation, request.settings)
            attachment = dataclasses.replace(attachment, function=function)
            self._folder.save(attachment)
        index = functions.put_in(function, request.settings, request.netns, request.ifname)
        self._folder.save(dataclasses.replace(attachment, index=index))
        return function

    def _allocation(self, request: PluginCall, attachment: Attachment) -> _Document:
        """The allocation, once it is active."""
        path = f"/allocations/{attachment.allocation}"
        if attachment.is_own:
            name = request.pod[:255]
            who = {"uuid": attachment.allocation, "type": _CONSUMER_TYPE, "name": name}
            profile = request.config["deviceProfile"]
            body = {"consumer": who, "device_profile_name": profile, "hosts": self._conf.host}
            self._api.call("POST", "/allocations", body)
        while (found := self._api.call("GET", path))["state"] in {states.CLAIMING, states.BINDING}:
            if time.monotonic() + _PAUSE > self._until:
                raise Failed(
                    protocol.TRY_LATER,
                    f"Allocation {attachment.allocation} is not ready within the seconds that "
                    "[cni] command_timeout permits.",
                )
            time.sleep(_PAUSE)
        if found["state"] != states.ACTIVE:
            raise Failed(
                protocol.TRY_LATER,
                f"Allocation {attachment.allocation} is {found['state']}: {found['state_reason']}",
            )
        return dict(found)

    def _choose(self, allocation: _Document, wanted: functions.Settings) -> functions.NicFunction:
        """A function of the allocation that no other container has."""
        taken = {each.function.address for each in self._folder.all() if each.function}
        for each in allocation["accelerators"]:
            address = functions.address_of(each["attach_handle_info"])
            if address is None or address in taken or not self._is_here(each["hostname"]):
                continue
            function = functions.see(address)
            if function is not None:
                _check_port(function, wanted)
                return function
        raise Failed(
            protocol.NOT_AS_GIVEN,
            f"Allocation {allocation['uuid']} has no free function with a network interface on "
            f"host {self._conf.host}: it is another device, another container has it, or its "
            "driver is none of the kernel's for networks, such as vfio-pci.",
        )

    def _is_here(self, hostname: str) -> bool:
        """True if that is the name of this host's resource provider."""
        named, host = self._conf.agent.resource_provider_name, self._conf.host
        if named is not None:
            return bool(hostname == named)
        # A host is known with its domain, or without it.
        return hostname == host or f"{hostname}.".startswith(f"{host}.")

    def _check(self, request: PluginCall) -> None:
        found = self._found(request)
        if found is None or found.function is None:
            raise Failed(protocol.NOT_AS_GIVEN, "The container does not have the interface.")
        if found.live_netns(links.identity(request.netns)) != request.netns:
            raise Failed(protocol.NOT_AS_GIVEN, f"The interface was not given to {request.netns}.")
        wanted = request.settings
        wrong = functions.differences(found.function, wanted, request.netns, request.ifname)
        state = (self._api.find(f"/allocations/{found.allocation}") or {}).get("state")
        if state != states.ACTIVE:
            wrong.append(f"allocation {found.allocation} is {state or 'gone'}")
        if wrong:
            raise Failed(protocol.NOT_AS_GIVEN, f"Interface {request.ifname}: {'; '.join(wrong)}.")

    def _delete(self, request: PluginCall) -> None:
        found = self._found(request)
        if found is not None:
            self._undo(found)

    def _collect(self, request: PluginCall) -> None:
        """Take back what no container has any more; one that fails does not keep the others."""
        known = request.config.get("cni.dev/valid-attachments") or ()
        valid = {(each.get("containerID"), each.get("ifname")) for each in known}
        failed = []
        for each in self._folder.all():
            if each.network == request.network and (each.container, each.ifname) not in valid:
                try:
                    self._undo(each)
                except (errors.CyborgError, OSError) as exc:
                    failed.append(f"{each.container} {each.ifname}: {exc}")
        if failed:
            raise Failed(protocol.TRY_LATER, " ".join(failed))

    def _status(self, request: PluginCall) -> None:
        profile = request.config.get("deviceProfile")
        if profile is None:
            self._api.call("GET", "/allocations?limit=1")
        elif self._api.find(f"/device_profiles/{profile}") is None:
            raise Failed(protocol.NOT_READY, f"There is no device profile {profile}.")

    def _found(self, request: PluginCall) -> Attachment | None:
        return self._folder.find(request.network, request.container, request.ifname)

    def _undo(self, attachment: Attachment) -> None:
        """Take back a function, and then what was allocated for it."""
        if attachment.function is not None:
            netns = attachment.live_netns(links.identity(attachment.netns))
            functions.take_back(attachment.function, netns, attachment.ifname, attachment.index)
            attachment = dataclasses.replace(attachment, function=None, index=None)
            if attachment.is_own:
                self._folder.save(attachment)
        if attachment.is_own:
            self._api.delete(f"/allocations/{attachment.allocation}")
        self._folder.remove(attachment)


def _check_port(function: functions.NicFunction, wanted: functions.Settings) -> None:
    """Raise Failed if a port is to enforce what only one of virtual functions can."""
    if function.port is None and (wanted.vlan or wanted.spoof_check is not None):
        raise Failed(
            protocol.BAD_CONFIG,
            f"vlan and spoofCheck are for virtual functions, and {function.address} is not one.",
        )
