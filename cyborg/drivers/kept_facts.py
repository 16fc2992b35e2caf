# SPDX-License-Identifier: Apache-2.0
"""Facts that a driver has read once and that must outlive the agent, in a file of its own."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import tempfile
import threading
from typing import Any

from oslo_config import cfg

LOG = logging.getLogger(__name__)

#: Who looks what an agent would report need not be its user.
_MODE = 0o644


class KeptFacts:
    """JSON values by kind and key. The file is read at the first question, and may be absent."""

    def __init__(self, conf: cfg.ConfigOpts, name: str) -> None:
        self._path = pathlib.Path(conf.state_path, "facts", f"{name}.json")
        self._facts: dict[str, dict[str, Any]] | None = None
        self._changed = False
        self._lock = threading.Lock()
        #: Passes, layouts and what is read beside the passes save, each in its own thread: what is
        #: older must not replace what is newer.
        self._saving = threading.Lock()

    def get(self, kind: str, key: str) -> Any:
        """The value, or None."""
        with self._lock:
            return self._loaded().get(kind, {}).get(key)

    def all(self, kind: str) -> dict[str, Any]:
        """All values of a kind, by key."""
        with self._lock:
            return dict(self._loaded().get(kind, {}))

    def set(self, kind: str, key: str, value: Any) -> None:
        """Keep a value, until :meth:`save` in memory only."""
        with self._lock:
            kept = self._loaded().setdefault(kind, {})
            if kept.get(key) != value:
                kept[key] = value
                self._changed = True

    def save(self) -> None:
        """Write the file if anything has changed. A failure is logged, and does no other harm."""
        with self._saving:
            with self._lock:
                if not self._changed:
                    return
                self._changed = False
                text = json.dumps(self._facts, indent=1, sort_keys=True)
            try:
                self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                _write(self._path, text)
                _sync(self._path.parent)
            except OSError as exc:
                self._changed = True
                LOG.warning("What drivers have read is forgotten when the agent stops: %s", exc)

    def _loaded(self) -> dict[str, dict[str, Any]]:
        if self._facts is None:
            self._facts = {}
            try:
                read = json.loads(self._path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                return self._facts
            except (OSError, ValueError) as exc:
                LOG.warning("%s is ignored: %s", self._path, exc)
                return self._facts
            if isinstance(read, dict):
                self._facts = {
                    kind: dict(facts) for kind, facts in read.items() if isinstance(facts, dict)
                }
        return self._facts


def _write(path: pathlib.Path, text: str) -> None:
    """Replace a file as a whole. Nobody else has the name of what is not written yet."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".new", dir=path.parent)
    new = pathlib.Path(name)
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


def _sync(folder: pathlib.Path) -> None:
    """Have the names in a folder outlive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
