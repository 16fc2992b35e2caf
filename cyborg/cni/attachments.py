# SPDX-License-Identifier: Apache-2.0
"""The attachments of containers to networks, one file each, which outlive any process."""

from __future__ import annotations

import contextlib
import fcntl
import json
import pathlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from cyborg.cni import functions
from cyborg.common import errors, files

_SUFFIX = ".json"


class AttachmentDamaged(errors.CyborgError):
    """A file is not one of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """An interface of a container, from before anything is done for it until all is undone."""

    network: str
    container: str
    ifname: str
    netns: str
    #: Device and inode of the namespace, since its path may be used again for another one.
    netns_identity: list[int] | None
    allocation: str
    #: The allocation was made for it, and goes with it.
    is_own: bool
    function: functions.NicFunction | None = None
    index: int | None = None

    def live_netns(self, identity: list[int] | None) -> str | None:
        """The path of the namespace if it is still there, by what is there now."""
        return self.netns if identity is not None and identity == self.netns_identity else None


class AttachmentFiles:
    """The folder of all attachments of the host."""

    def __init__(self, path: str) -> None:
        self._path = pathlib.Path(path)

    def prepare(self) -> None:
        """Make the folder, and see that files can be written there.

        :raises OSError: they cannot
        """
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.locked():
            pass

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process choose a function meanwhile."""
        with (self._path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def find(self, network: str, container: str, ifname: str) -> Attachment | None:
        """The attachment of that name, if there is one."""
        path = self._file(network, container, ifname)
        return _read(path) if path.exists() else None

    def all(self) -> list[Attachment]:
        """Every attachment of the host."""
        return [_read(path) for path in sorted(self._path.glob(f"*{_SUFFIX}"))]

    def save(self, attachment: Attachment) -> None:
        """Write an attachment, wholly or not at all."""
        path = self._file(attachment.network, attachment.container, attachment.ifname)
        files.replace(path, json.dumps(asdict(attachment)))

    def remove(self, attachment: Attachment) -> None:
        """Forget an attachment."""
        path = self._file(attachment.network, attachment.container, attachment.ifname)
        path.unlink(missing_ok=True)

    def _file(self, network: str, container: str, ifname: str) -> pathlib.Path:
        # None of them has a '@', but perhaps the name of an interface, which is the last.
        return self._path / f"{network}@{container}@{ifname}{_SUFFIX}"


def _read(path: pathlib.Path) -> Attachment:
    try:
        fields = json.loads(path.read_bytes())
        if found := fields.pop("function"):
            port = found.pop("port")
            fields["function"] = functions.NicFunction(
                **found, port=None if port is None else functions.Port(**port)
            )
        return Attachment(**fields)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise AttachmentDamaged(f"File {path} is damaged: {exc}. Remove it by hand.") from exc
