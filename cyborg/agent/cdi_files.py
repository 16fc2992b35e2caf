# SPDX-License-Identifier: Apache-2.0
"""The files of the Container Device Interface (CDI): one for each attach handle that is in use.

A file is named after its handle, so the file of a handle's next holder takes the place of the last
one's. Files of others in the folder are left alone.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cyborg.common import files
from cyborg.drivers import base, kept_cdi

LOG = logging.getLogger(__name__)

#: Vendor and class of the devices; the name of each is the uuid of its ARQ.
KIND = "cyborg.openstack.org/accelerator"

#: Another one after each start of the machine.
BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_MARKER = ".cyborg-boot-id"

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FILE = re.compile(rf"cyborg-(?P<handle>{_UUID.pattern})-(?P<place>[0-9a-f]{{12}})\.json")
_DRAFT = re.compile(rf"\.{_FILE.pattern}\.new")
#: The group of the agent may read them; container runtimes are root.
_MODE = 0o640


@dataclass(frozen=True, slots=True)
class File:
    """A file of ours. ``place`` says which handle of the host it is, whatever its uuid.

    ``written`` tells it from one of the same name that was written later.
    """

    path: pathlib.Path
    place: str
    written: tuple[int, int]


class Folder:
    """The folder of the files."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._begun = False

    def begin(self) -> None:
        """Remove, once, what an earlier agent has left half written, or before a reboot.

        After a reboot the numbers of device nodes may be others.

        :raises OSError: the folder is not there and cannot be made, or cannot be written
        """
        with self._lock:
            if self._begun:
                return
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
            boot, marker = BOOT_ID.read_text().strip(), self._path / _MARKER
            is_old = not marker.exists() or marker.read_text().strip() != boot
            for path in list(self._path.iterdir()):
                if _DRAFT.fullmatch(path.name) or (is_old and _FILE.fullmatch(path.name)):
                    path.unlink(missing_ok=True)
            if is_old:
                files.replace(marker, boot, _MODE)
            self._begun = True

    def files(self) -> dict[str, File]:
        """The files of ours by the uuids of their handles.

        :raises OSError: the folder cannot be read
        """
        with self._lock:
            return dict(self._files())

    def write(
        self,
        handle: str,
        place: str,
        arq: str,
        edits: base.ContainerEdits,
        copied: Sequence[kept_cdi.Device] = (),
    ) -> None:
        """Write the file of a handle that an ARQ has now; the file of any other ARQ is gone then.

        :raises ValueError: one of the uuids is none
        :raises OSError: it cannot be written
        """
        for uuid in (handle, arq):
            if not _UUID.fullmatch(uuid):
                raise ValueError(f"{uuid!r} is not a uuid")
        self.begin()
        path = self._path / f"cyborg-{handle}-{place}.json"
        with self._lock:
            former = dict(self._files()).get(handle)
            if former is not None and former.path != path:
                former.path.unlink(missing_ok=True)
            document = specification(arq, edits, copied)
            files.replace(path, json.dumps(document, indent=1, sort_keys=True) + "\n", _MODE)

    def remove(self, handle: str, *, unless: str | None = None) -> None:
        """Remove the file of a handle, if there is one, and not that of the ARQ ``unless``.

        :raises OSError: it cannot be removed
        """
        with self._lock:
            found = dict(self._files()).get(handle)
            if found is not None and (unless is None or _holder(found.path) != unless):
                found.path.unlink(missing_ok=True)

    def remove_unless_held(self, seen: Mapping[str, File], held: Mapping[str, str]) -> None:
        """Remove those of the files seen whose ARQ does not hold their handle.

        ``held`` was asked for after they were seen. A file that was written since then stays.

        :raises OSError: one cannot be removed
        """
        with self._lock:
            now = dict(self._files())
            for handle, file in seen.items():
                if now.get(handle) == file and _holder(file.path) != held.get(handle, ""):
                    LOG.warning("%s is removed: nobody has the accelerator any more", file.path)
                    file.path.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[str, File]]:
        try:
            entries = list(os.scandir(self._path))
        except FileNotFoundError:
            return
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match is not None:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                written = (status.st_ino, status.st_mtime_ns)
                yield match["handle"], File(pathlib.Path(entry.path), match["place"], written)


def specification(
    arq: str, edits: base.ContainerEdits, copied: Sequence[kept_cdi.Device] = ()
) -> dict[str, Any]:
    """The content of a file. Its version is the first that has all that is used."""
    # Names that begin with a digit came with 0.5.0.
    own = (0, 3, 0) if arq[0].isalpha() else (0, 5, 0)
    version = max([own, *(each.version for each in copied)])
    found = _copies(copied)
    given = {node["path"] for node in found.get("deviceNodes", ())}
    for key, values in _own_edits(edits).items():
        known = found.setdefault(key, [])
        known += [each for each in values if key != "deviceNodes" or each["path"] not in given]
    return {
        "cdiVersion": ".".join(map(str, version)),
        "kind": KIND,
        "devices": [
            {
                "name": arq,
                "containerEdits": {key: value for key, value in found.items() if value},
            }
        ],
    }


def _own_edits(edits: base.ContainerEdits) -> dict[str, list[Any]]:
    """The edits that the driver names itself, as a file has them."""
    hooks = [
        {"hookName": hook.name, "path": hook.path, "args": list(hook.args), "env": list(hook.env)}
        for hook in edits.hooks
    ]
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": list(mount.options),
        }
        for mount in edits.mounts
    ]
    return {
        "env": [f"{name}={value}" for name, value in sorted(edits.env.items())],
        # Type and number are read from the node by the runtime; nothing may be made there.
        "deviceNodes": [{"path": path, "permissions": "rw"} for path in edits.device_nodes],
        "mounts": mounts,
        "hooks": [{key: value for key, value in hook.items() if value} for hook in hooks],
    }


def _copies(devices: Sequence[kept_cdi.Device]) -> dict[str, list[Any]]:
    """The edits of devices that others keep, each once, but for nodes that are not there."""
    found: dict[str, list[Any]] = {}
    for part in (part for each in devices for part in (each.common, each.edits)):
        for key, values in part.items():
            known = found.setdefault(key, [])
            for value in values if isinstance(values, list) else ():
                if value not in known and (key != "deviceNodes" or _is_there(value)):
                    known.append(value)
    return found


def _is_there(node: object) -> bool:
    """True if the host has a device node that somebody's file names."""
    path = (node.get("hostPath") or node.get("path")) if isinstance(node, dict) else None
    return isinstance(path, str) and pathlib.Path(path).exists()


def _holder(path: pathlib.Path) -> str | None:
    """The ARQ that a file was written for; None if it cannot be read."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["devices"][0]["name"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
