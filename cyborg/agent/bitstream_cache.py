# SPDX-License-Identifier: Apache-2.0
"""Bitstreams on the host: fetched from Glance, verified at each use, in a cache of limited size."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import IO

from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg import rpc
from cyborg.common import errors
from cyborg.drivers import image_signatures
from cyborg.peers import clients, glance

LOG = logging.getLogger(__name__)

_MIB = 1024 * 1024
_PART = ".part"
#: Seconds after which a partly written file counts as abandoned.
_STALE = 3600
#: Broken hash algorithms, but Glance may have nothing better for an old image.
_WEAK = frozenset({"md5", "sha1"})
#: Errors of Glance and Keystone that end when they, or a proxy before them, are up again.
_TEMPORARY = (
    ka_exc.ConnectionError,
    ka_exc.BadGateway,
    ka_exc.GatewayTimeout,
    ka_exc.ServiceUnavailable,
)
#: Hash algorithms with a fixed length.
_ALGORITHMS = {name for name in hashlib.algorithms_guaranteed if not name.startswith("shake")}


class NoBitstream(errors.CyborgError):
    """There is no such bitstream, or it is not the expected one."""


class NotNow(errors.ServiceUnavailable):
    """Glance, Keystone or the key manager cannot be reached; a later request may succeed."""


def _sweep(folder: pathlib.Path) -> None:
    """Remove partly written files of an agent that ended, but not those being written now."""
    for path in folder.glob(f"*{_PART}"):
        if path.stat().st_mtime < time.time() - _STALE:
            path.unlink(missing_ok=True)


class Cache:
    """The bitstreams that this agent has fetched."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._options = conf.programming
        self._lock = threading.Lock()
        self._fetching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._in_use: Counter[pathlib.Path] = Counter()
        self._swept = False

    @contextlib.contextmanager
    def fetched(self, step: rpc.ProgramStep) -> Iterator[pathlib.Path]:
        """A file with the verified image of the step. It stays as long as the block runs.

        :raises NoBitstream: there is no image, it is too large, or its hash or signature is wrong
        :raises NotNow: it cannot be fetched at the moment
        """
        self._check(step)
        path = self._folder() / _name_of(step)
        with self._used(path):
            # Two deployables may need the same image at once.
            with self._lock:
                fetching = self._fetching[path.name]
            with fetching:
                self._provide(step, path)
            yield path

    def _check(self, step: rpc.ProgramStep) -> None:
        """Refuse an image by its properties, before it is fetched."""
        most = self._options.max_bitstream_mib
        if step.size > most * _MIB:
            raise NoBitstream(
                f"Image {step.image_uuid} has {step.size} bytes, more than [programming] "
                f"max_bitstream_mib, {most}, permits"
            )
        if step.hash_algo not in _ALGORITHMS:
            raise NoBitstream(
                f"The hash algorithm of image {step.image_uuid} is not known here: {step.hash_algo}"
            )
        if step.hash_algo in _WEAK and self._options.require_secure_hash:
            raise NoBitstream(
                f"Image {step.image_uuid} has no better hash than {step.hash_algo}, and "
                f"[programming] require_secure_hash is true"
            )
        if not step.signature and self._options.require_signature:
            raise NoBitstream(
                f"Image {step.image_uuid} is not signed, and [programming] require_signature is "
                f"true"
            )

    def _folder(self) -> pathlib.Path:
        folder = pathlib.Path(self._options.cache_path)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock:
                if not self._swept:
                    _sweep(folder)
                self._swept = True
        except OSError as exc:
            raise NoBitstream(f"Bitstreams cannot be kept: {exc}") from exc
        return folder

    @contextlib.contextmanager
    def _used(self, path: pathlib.Path) -> Iterator[None]:
        with self._lock:
            self._in_use[path] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use[path] -= 1
                if not self._in_use[path]:
                    del self._in_use[path]
                    self._fetching.pop(path.name, None)
            try:
                self._make_room(path.parent, 0)
            except OSError as exc:
                # The deployable is programmed even so.
                LOG.warning("Bitstreams cannot be removed: %s", exc)

    def _provide(self, step: rpc.ProgramStep, path: pathlib.Path) -> None:
        try:
            if path.exists() and not _is_right(path, step):
                LOG.warning("Bitstream %s has changed on disk; it is fetched again", path)
                path.unlink(missing_ok=True)
            if not path.exists():
                self._make_room(path.parent, step.size)
                self._fetch(step, path)
            # The kernel's clock for files ticks only every few milliseconds.
            now = time.time_ns()
            os.utime(path, ns=(now, now))
            if step.signature:
                image_signatures.verify(path, step.signature, self._options.trusted_certificate_ids)
        except OSError as exc:
            raise NoBitstream(f"Image {step.image_uuid} cannot be kept: {exc}") from exc
        except image_signatures.NoKeyManager as exc:
            raise NotNow(
                f"The signature of image {step.image_uuid} cannot be verified now: {exc}"
            ) from exc
        except image_signatures.BadSignature as exc:
            raise NoBitstream(
                f"The signature of image {step.image_uuid} is not good: {exc}"
            ) from exc

    def _fetch(self, step: rpc.ProgramStep, path: pathlib.Path) -> None:
        if not clients.configured(self._conf, "glance"):
            raise NoBitstream("There is no Glance: [glance] auth_type is not set for agents")
        attempts = 1 + self._conf.glance.num_retries
        for attempt in range(1, attempts + 1):
            try:
                self._fetch_once(step, path)
            except _TEMPORARY as exc:
                why_not = clients.why_not("glance", exc)
                raise NotNow(f"Image {step.image_uuid} cannot be fetched now: {why_not}") from exc
            except (glance.Incomplete, glance.NoImage, ka_exc.ClientException) as exc:
                if attempt == attempts or not isinstance(exc, glance.Incomplete):
                    raise NoBitstream(f"Image {step.image_uuid} cannot be fetched: {exc}") from exc
                LOG.warning("It is fetched again: %s", exc)
            else:
                return

    def _fetch_once(self, step: rpc.ProgramStep, path: pathlib.Path) -> None:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=_PART, delete=False) as file:
            part = pathlib.Path(file.name)
            try:
                self._receive(step, file)
                part.rename(path)
            except BaseException:
                part.unlink()
                raise

    def _receive(self, step: rpc.ProgramStep, file: IO[bytes]) -> None:
        digest, size = hashlib.new(step.hash_algo, usedforsecurity=False), 0
        for piece in glance.download(self._conf, step.image_uuid):
            size += len(piece)
            if size > step.size:
                break
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        if size != step.size or digest.hexdigest() != step.hash_value.lower():
            raise NoBitstream(
                f"The data of image {step.image_uuid} does not have the size and {step.hash_algo} "
                f"hash that Glance shows"
            )

    def _make_room(self, folder: pathlib.Path, size: int) -> None:
        """Remove unused files, the oldest use first, until ``size`` more bytes have room."""
        most = self._options.cache_size_mib * _MIB - size
        with self._lock:
            kept = []
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if not self._in_use[path] and path.suffix != _PART:
                        kept.append((path.stat().st_mtime_ns, path.stat().st_size, path))
            total = sum(bytes_of for _, bytes_of, _ in kept)
            for _, bytes_of, path in sorted(kept):
                if total <= most:
                    break
                LOG.info("Bitstream %s makes room", path)
                path.unlink(missing_ok=True)
                total -= bytes_of


def _name_of(step: rpc.ProgramStep) -> str:
    """The name of the file, which changes with the expected data of the image."""
    try:
        image = uuid.UUID(step.image_uuid)
        bytes.fromhex(step.hash_value)
    except ValueError as exc:
        raise NoBitstream(f"This is not an image: {exc}") from exc
    return f"{image}.{step.hash_algo}.{step.hash_value[:32].lower()}"


def _is_right(path: pathlib.Path, step: rpc.ProgramStep) -> bool:
    if path.stat().st_size != step.size:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(
            file, lambda: hashlib.new(step.hash_algo, usedforsecurity=False)
        )
    return digest.hexdigest() == step.hash_value.lower()
