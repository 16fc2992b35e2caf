# SPDX-License-Identifier: Apache-2.0
"""The files in ``[agent] cdi_dir``, which give containers the host's accelerators.

A file is written when its handle is prepared, and removed when it is cleaned. So that conductors
ask for both steps, each deployable prepares and cleans then; what the driver itself needs is kept
here. A file that is lost is missing among ``prepared`` in the next report, and the step comes
again. A file that nobody needs, as after a forced release, is found by asking who has what.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from oslo_config import cfg

from cyborg import rpc
from cyborg.agent import cdi_files, discovery
from cyborg.drivers import base, container_facts, kept_cdi, open_nodes, privileged

LOG = logging.getLogger(__name__)

#: The name under which errors of the folder are reported, beside those of drivers.
NAME = "cdi"

Step = Callable[[base.HeldHandle], None]


@dataclass(frozen=True, slots=True)
class _Own:
    """The steps that the driver itself needs for a handle."""

    prepares: bool
    cleans: bool


class Specifications:
    """The files of the handles that are in use; nothing at all without ``[agent] cdi_dir``."""

    def __init__(self, conf: cfg.ConfigOpts, drivers: Mapping[str, base.Driver]) -> None:
        folder = conf.agent.cdi_dir
        self._conf = conf
        self._folder = cdi_files.Folder(pathlib.Path(folder)) if folder else None
        self._drivers = drivers
        #: By driver and place, for all handles that were ever found.
        self._own: dict[tuple[str, str], _Own] = {}
        #: Handles in use, as they were last heard of.
        self._held: Mapping[str, str] = {}

    def noted(self, findings: discovery.Findings) -> discovery.Findings:
        """The findings with the steps that the files need, and with what has its file now."""
        if self._folder is None:
            return findings
        errors, files = dict(findings.errors), {}
        try:
            self._folder.begin()
            files = self._folder.files()
        except OSError as exc:
            errors[NAME] = f"[agent] cdi_dir cannot be used: {exc}"
        devices = {
            name: tuple(self._device(name, each, files) for each in found)
            for name, found in findings.devices.items()
        }
        return replace(findings, devices=devices, errors=errors)

    def _device(
        self, driver: str, device: base.Device, files: Mapping[str, cdi_files.File]
    ) -> base.Device:
        parts = tuple(
            self._part(driver, device.control_path, part, files)
            if all(self._covers(driver, each) for each in part.attach_handles)
            else part
            for part in device.deployables
        )
        return replace(device, deployables=parts)

    def _part(
        self,
        driver: str,
        path: base.ControlPath,
        part: base.Deployable,
        files: Mapping[str, cdi_files.File],
    ) -> base.Deployable:
        places = {_place(handle, path) for handle in part.attach_handles}
        if not places:
            return part
        own = _Own(part.prepares, part.cleans)
        self._own |= {(driver, place): own for place in places}
        if part.prepared is None:
            ready = {handle for handle, file in files.items() if file.place in places}
        else:
            # It may have devices of others too.
            ready = set(part.prepared) - (self._held.keys() - files.keys())
        return replace(
            part,
            prepares=True,
            cleans=True,
            prepared=tuple(sorted(ready)),
            attributes={**part.attributes, base.CDI_KIND_KEY: cdi_files.KIND},
        )

    def reconcile(self) -> None:
        """Remove the files of handles that nobody has any more, if that can be known now."""
        if self._folder is None:
            return
        try:
            seen = self._folder.files()
            held = rpc.held_handles(self._conf, self._conf.host)
            if held is not None:
                self._held = held
                self._folder.remove_unless_held(seen, held)
        except OSError as exc:
            LOG.warning("Files in [agent] cdi_dir cannot be compared with what is in use: %s", exc)

    def step(self, asked: rpc.HostStep, own: Step | None) -> Step | None:
        """A step of a handle with that of its file; ``own`` is the driver's, if it has one.

        None if there is neither.
        """
        handle = asked.handle()
        if self._folder is None or not self._covers(asked.driver, handle):
            is_clean = own is not None and asked.action == "clean"
            return functools.partial(self._clean, None, own) if is_clean else own
        needs = self._own.get((asked.driver, _place(handle, handle.control_path)))
        if asked.action == "clean":
            return functools.partial(
                self._clean, self._folder, own if needs is None or needs.cleans else None
            )
        if needs is None:
            raise rpc.HostStepRunning("The agent has not found the handle yet")
        return functools.partial(
            self._prepare, self._folder, asked, own if needs.prepares else None
        )

    def _prepare(
        self,
        folder: cdi_files.Folder,
        asked: rpc.HostStep,
        own: Step | None,
        handle: base.HeldHandle,
    ) -> None:
        # What the last one had must not lead to what this one gets.
        folder.remove(handle.uuid, unless=asked.arq_uuid)
        if own is not None:
            own(handle)
        edits = container_facts.of(self._drivers[asked.driver], handle)
        wanted = edits.cdi_wanted and kept_cdi.fitting(self._conf, *edits.cdi_wanted)
        names = [*edits.cdi_devices, *([wanted] if wanted else [])]
        copied = kept_cdi.named(self._conf, names)
        place = _place(handle, handle.control_path)
        folder.write(handle.uuid, place, asked.arq_uuid, edits, copied)

    def _clean(
        self, folder: cdi_files.Folder | None, own: Step | None, handle: base.HeldHandle
    ) -> None:
        if folder is not None:
            # First of all, so that no container gets what is being cleaned.
            folder.remove(handle.uuid)
            _check_left(handle.uuid)
        if own is not None and not self._is_in_use(folder, handle):
            own(handle)

    def _is_in_use(self, folder: cdi_files.Folder | None, handle: base.HeldHandle) -> bool:
        """True if the handle is a share of a card of which others have shares.

        :raises HostStepRunning: other shares have files, and it is not known who has them
        """
        if base.SHARE_KEY not in handle.attach_info:
            return False
        place = _place(handle, handle.control_path)
        files = {} if folder is None else folder.files()
        others = {uuid for uuid, file in files.items() if file.place == place}
        is_asked = others and not handle.card_in_use
        held = rpc.held_handles(self._conf, self._conf.host) if is_asked else {}
        if held is None:
            sentence = "No conductor says whether other shares of the card are in use"
            raise rpc.HostStepRunning(sentence, seconds=0)
        return handle.card_in_use or not others.isdisjoint(held)

    def _covers(self, driver: str, handle: base.AttachHandle) -> bool:
        """True if a container on this host can have such a handle."""
        known = handle.attach_type in container_facts.TYPES
        return known or isinstance(self._drivers.get(driver), base.Containable)


def _check_left(handle: str) -> None:
    """Raise HostStepFailed if a container runs on that was given the nodes of a handle.

    The next one must not share the device with it. Only root sees the containers of others.
    """
    is_helped = bool(privileged.watching.conf.helper_command)
    look = privileged.containers if is_helped else open_nodes.containers
    if running := look(handle):
        raise rpc.HostStepFailed(
            f"Process {running[0]} of a container still has the device: end the container"
        )


def _place(handle: base.AttachHandle, path: base.ControlPath) -> str:
    """Which handle of the host it is, as text that is short enough for the name of a file.

    A PCI function stays the same handle if other facts of it change. Shares of one are one place.
    """
    info = handle.attach_info
    address = [info.get(key) for key in ("domain", "bus", "device", "function")]
    whole = [path.cpid_type, dict(path.cpid_info), dict(info)]
    is_function = handle.attach_type != "MDEV" and None not in address
    text = base.canonical_json([handle.attach_type, address if is_function else whole])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
