# SPDX-License-Identifier: Apache-2.0
"""The results of the last write to each deployable, for a conductor that has not heard them.

A conductor asks again until it has an answer, and a write may end between two of its questions.
The result is kept until a later order has leave to write the deployable and ends, as its conductor
must have the former result by then. It is in a file, so that the next agent knows it as well. A
host that was booted since may have lost what was written, so a result counts only until then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pathlib
from typing import Any

from oslo_config import cfg

from cyborg import rpc
from cyborg.common import files

LOG = logging.getLogger(__name__)

_BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


class Results:
    """The results of this agent, and of the agents of this host before it."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._folder = pathlib.Path(conf.state_path, "writes")
        #: By the deployable's name. Here too, as the disk may be full.
        self._kept: dict[str, dict[str, Any]] = {}

    def find(self, step: rpc.ProgramStep) -> rpc.ProgramAnswer | None:
        """The answer of the very write that is asked for, or None if it has not been made.

        :raises ProgramFailed: it has been made, and failed
        """
        kept = self._kept.get(step.deployable) or self._read(step.deployable)
        if any(kept.get(key) != value for key, value in _facts(step).items()):
            return None
        LOG.info("The write to %s was made already", step.deployable)
        if "failed" in kept:
            raise rpc.ProgramFailed(kept["failed"], written=kept["written"])
        return rpc.ProgramAnswer.from_wire(kept["answer"])

    def keep_answer(self, step: rpc.ProgramStep, answer: rpc.ProgramAnswer) -> None:
        """Keep the answer of a write."""
        self._keep(step, {"answer": answer.to_wire()})

    def keep_failure(self, step: rpc.ProgramStep, failure: rpc.ProgramFailed) -> None:
        """Keep how a write failed."""
        self._keep(step, {"failed": str(failure), "written": failure.written})

    def _keep(self, step: rpc.ProgramStep, result: dict[str, Any]) -> None:
        kept = self._kept[step.deployable] = _facts(step) | result
        path = self._path(step.deployable)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.replace(path, json.dumps(kept))
        except OSError:
            LOG.warning("The result of a write is kept in memory only", exc_info=True)
        else:
            LOG.info("The result of the write to %s is kept in %s", step.deployable, path)

    def _read(self, deployable: str) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path(deployable).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, TypeError, ValueError):
            LOG.warning("The result of a write cannot be read", exc_info=True)
            return {}

    def _path(self, deployable: str) -> pathlib.Path:
        # A name may be longer than that of a file.
        return self._folder / f"{hashlib.sha256(deployable.encode()).hexdigest()}.json"


def _facts(step: rpc.ProgramStep) -> dict[str, Any]:
    """The facts that must be the same for a result to be that of the step."""
    return {
        "deployable": step.deployable,
        "operation": step.operation_uuid,
        "write": step.write,
        "boot": _BOOT.read_text(encoding="utf-8").strip(),
    }
