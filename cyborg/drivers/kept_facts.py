# SPDX-License-Identifier: Apache-2.0
"""Facts that a driver has read once and that must outlive the agent, in a file of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import pathlib
import tempfile
import threading
from typing import Any

from oslo_config import cfg

from cyborg.drivers import identity

LOG = logging.getLogger(__name__)

#: Who looks what an agent would report need not be its user.
_MODE = 0o644
#: The kind of the serials of cards by address.
_CARDS = "cards"


class KeptFacts:
    """JSON values by kind and key. The file is read at the first question, and may be absent."""

    def __init__(self, conf: cfg.ConfigOpts, name: str) -> None:
        self._path = pathlib.Path(conf.state_path, "facts", f"{name}.json")
        self._facts: dict[str, dict[str, Any]] | None = None
        self._changed = False
        self._is_tidy = False
        #: What is wrong with the file, or None.
        self.problem: str | None = None
        self._lock = threading.Lock()
        #: Passes, layouts and what is read beside the passes save, each in its own thread: what is
        #: older must not replace what is newer.
        self._saving = threading.Lock()

    def get(self, kind: str, key: str) -> Any:
        """The value, or None.

        :raises OSError: the file cannot be read, so that the value is not known
        """
        with self._lock:
            return self._loaded().get(kind, {}).get(key)

    def all(self, kind: str) -> dict[str, Any]:
        """All values of a kind, by key.

        :raises OSError: as :meth:`get`
        """
        with self._lock:
            return dict(self._loaded().get(kind, {}))

    def set(self, kind: str, key: str, value: Any) -> None:
        """Keep a value, until :meth:`save` in memory only.

        :raises OSError: as :meth:`get`
        """
        with self._lock:
            kept = self._loaded().setdefault(kind, {})
            if kept.get(key) != value:
                kept[key] = value
                self._changed = True

    def check(self, address: str, serial: object) -> None:
        """Forget what is kept by the address or slot of a card if another is there now.

        What nobody has asked for yet is not read for this.
        """
        if self._facts is None or serial is None:
            return
        now = identity.of([serial], "", None)
        with self._lock:
            cards = self._facts.setdefault(_CARDS, {})
            was = identity.Identity(cards.get(address))
            if now.serial is None or was.serial == now.serial or (was.serial and now.is_of_pci):
                return
            if was.has_other_serial(now):
                of_card = (address, address.rpartition(".")[0])
                for facts in self._facts.values():
                    for key in [key for key in facts if key.partition(" ")[0] in of_card]:
                        del facts[key]
            cards[address] = now.serial
            self._changed = True

    def save(self) -> None:
        """Write the file if anything has changed. A failure is logged, and does no other harm."""
        with self._saving:
            if self._changed or not self._is_tidy:
                self._is_tidy = True
                _remove_leftovers(self._path)
            with self._lock:
                if not self._changed:
                    return
                self._changed = False
                text = json.dumps(self._facts, indent=1, sort_keys=True)
            try:
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _write(self._path, text)
                self.problem = None
                _sync(self._path.parent)
            except OSError as exc:
                self._changed = True
                LOG.warning("The facts of drivers are forgotten when the agent stops: %s", exc)

    def _loaded(self) -> dict[str, dict[str, Any]]:
        if self._facts is None:
            self._facts = self._read()
        return self._facts

    def _read(self) -> dict[str, dict[str, Any]]:
        """The facts in the file; none if it is damaged, or only the agent may read it.

        :raises OSError: it cannot be read: what it holds must not be taken for forgotten
        """
        self.problem = None
        try:
            read = dict(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (PermissionError, ValueError, TypeError) as exc:
            self.problem = f"{self._path} is ignored: {exc}"
            LOG.warning("%s", self.problem)
            # The next save mends what is damaged.
            self._changed = self._changed or not isinstance(exc, OSError)
            return {}
        except OSError as exc:
            exc.filename = str(self._path)
            raise
        return {kind: dict(facts) for kind, facts in read.items() if isinstance(facts, dict)}


def _write(path: pathlib.Path, text: str) -> None:
    """Replace a file as a whole. Nobody else has the name of what is not written yet."""
    descriptor, new = _new_file(path)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - it is open already
            file.write(text)
            file.flush()
            os.fchmod(descriptor, _MODE)
            os.fsync(descriptor)
            new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _new_file(path: pathlib.Path) -> tuple[int, pathlib.Path]:
    """A file beside another, open and locked: nobody takes it for what is left of a dead writer."""
    while True:
        descriptor, name = tempfile.mkstemp(
            prefix=f"{path.stem}.", suffix=".new", dir=path.parent
        )
        # Where files cannot be locked, nobody removes leftovers either.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        new = pathlib.Path(name)
        if new.exists():
            return descriptor, new
        os.close(descriptor)  # somebody has removed it before it was locked


def _remove_leftovers(path: pathlib.Path) -> None:
    """Remove what writers of a file have begun and were killed at: no living one has it locked."""
    for each in path.parent.glob(f"{path.stem}.*.new"):
        # Another may have finished it, or removed it just now, or it is another user's.
        with contextlib.suppress(OSError):
            descriptor = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                each.unlink()
            finally:
                os.close(descriptor)


def _sync(folder: pathlib.Path) -> None:
    """Have the names in a folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
