# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone as a process that kills itself at a chosen point of what a request began.

The points are before and after each commit, each HTTP request sent, and each message sent and
received. They are cut in here, into the libraries: the product knows nothing of them.
"""

from __future__ import annotations

import functools
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import requests
from oslo_messaging import transport
from oslo_messaging.rpc import dispatcher
from sqlalchemy.engine import default

from cyborg.api import app
from cyborg.cmd import standalone

#: The request that carries this header begins the count.
HEADER = "X-Test-Count-From-Here"


class Points:
    """Counts the points reached since the marked request, writes them down, kills at one."""

    def __init__(self, journal: pathlib.Path, kill_at: int) -> None:
        # Unbuffered, so that no line is lost.
        self._journal = journal.open("ab", buffering=0)
        self._kill_at = kill_at
        self._lock = threading.Lock()
        self._counting = False
        self._count = 0

    def install(self) -> None:
        """Cut into the libraries of this process, and into its application."""
        self._around(default.DefaultDialect, "do_commit", "commit")
        self._around(requests.Session, "send", "http request")
        self._around(transport.Transport, "_send", "message sent")
        self._around(dispatcher.RPCDispatcher, "dispatch", "message received")
        load = app.load
        setattr(app, load.__name__, lambda conf: self._watched(load(conf)))

    def _around(self, owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        @functools.wraps(original)
        def cut(*args: Any, **kwargs: Any) -> Any:
            self._reach(f"before {name}")
            result = original(*args, **kwargs)
            self._reach(f"after {name}")
            return result

        setattr(owner, method, cut)

    def _watched(self, application: WSGIApplication) -> WSGIApplication:
        variable = "HTTP_" + HEADER.upper().replace("-", "_")

        def watched(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            self._counting |= variable in environ
            return application(environ, start_response)

        return watched

    def _reach(self, name: str) -> None:
        if not self._counting:
            return
        with self._lock:
            self._count += 1
            line = f"{self._count} {name} in {threading.current_thread().name}\n"
            self._journal.write(line.encode())
            if self._count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def main(argv: list[str], output: pathlib.Path, journal: pathlib.Path, kill_at: int) -> None:
    """Be cyborg-standalone, cut at that point; what it says goes to the file ``output``."""
    with output.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    Points(journal, kill_at).install()
    sys.exit(standalone.main(argv))
