# SPDX-License-Identifier: Apache-2.0
"""DH-HMAC-CHAP keys of ARQs: files that an SPDK target reads through its keyring."""

from __future__ import annotations

import base64
import pathlib
import secrets
import zlib

from cyborg.common import files
from cyborg.drivers.nvme import spdk_rpc

#: How the names of our keys begin; a target may have others.
_PREFIX = "cyborg-"
_SECRET_BYTES = 32


class ChapKeys:
    """The keys below a folder, each by the uuid of its ARQ."""

    def __init__(self, folder: str) -> None:
        self._folder = pathlib.Path(folder)

    def read(self, uuid: str) -> str | None:
        """The key of that uuid; None if there is none."""
        try:
            return self._path(uuid).read_text(encoding="ascii")
        except FileNotFoundError:
            return None

    def add(self, target: spdk_rpc.SpdkConnection, uuid: str) -> str:
        """Have the target know the key of that uuid, which is made if there is none; its name."""
        name, path = name_of(uuid), self._path(uuid)
        if self.read(uuid) is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, _new_key())
        known = _paths(target)
        if known.get(name, str(path)) != str(path):
            target.call("keyring_file_remove_key", name=name)
        if known.get(name) != str(path):
            target.call("keyring_file_add_key", name=name, path=str(path))
        return name

    def remove(self, target: spdk_rpc.SpdkConnection, uuid: str) -> None:
        """Have nobody know the key of that uuid any more."""
        if name_of(uuid) in _paths(target):
            target.call("keyring_file_remove_key", name=name_of(uuid))
        self._path(uuid).unlink(missing_ok=True)

    def _path(self, uuid: str) -> pathlib.Path:
        if pathlib.Path(uuid).name != uuid:
            raise ValueError(f"{uuid!r} is not a uuid")
        return self._folder / uuid


def name_of(uuid: str) -> str:
    """The name that the target's keyring has for the key of that uuid."""
    return f"{_PREFIX}{uuid}"


def _paths(target: spdk_rpc.SpdkConnection) -> dict[str, str]:
    """The files of the keys that the target knows, by name."""
    # A key that is removed is listed as long as a connection uses it.
    listed = [each for each in target.call("keyring_get_keys") if not each.get("removed")]
    return {each["name"]: str(each.get("path", "")) for each in listed}


def _new_key() -> str:
    """A key as NVMe writes it: its bytes, which are used as they are, with their CRC-32."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    checked = secret + zlib.crc32(secret).to_bytes(4, "little")
    return f"DHHC-1:00:{base64.b64encode(checked).decode()}:"
