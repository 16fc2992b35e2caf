# SPDX-License-Identifier: Apache-2.0
"""Threads that begin together."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Seconds for all of them, even on a busy machine.
PATIENCE = 180


def at_once(*functions: Callable[[], object]) -> None:
    """Run the functions at the same time, each in a thread of its own."""
    ready = threading.Barrier(len(functions))
    faults: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            ready.wait()
            function()
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            faults.append(exc)

    threads = [threading.Thread(target=run, args=[each], daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert faults == []
    assert not any(thread.is_alive() for thread in threads)
