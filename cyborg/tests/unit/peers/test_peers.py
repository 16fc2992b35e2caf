# SPDX-License-Identifier: Apache-2.0
"""Places of calls to other services, and how large an answer may be."""

from __future__ import annotations

import contextlib
import threading

import pytest

from cyborg.peers import answers


def test_an_outage_of_before_has_nobody_refused() -> None:
    places, hangs = answers.Places(4), threading.Event()

    def hang() -> None:
        with contextlib.suppress(OSError), places.take("placement", "a"):
            hangs.wait()
            raise OSError

    holder = threading.Thread(target=hang)
    holder.start()
    while not places._taken[("placement",)]:
        pass
    with pytest.raises(answers.Unusable), places.take("placement", "a"):
        pass
    hangs.set()
    holder.join()
    # The service is well again: who finds it busy for a moment waits for a place.
    served: list[bool] = []
    begun = threading.Barrier(3)

    def ask() -> None:
        begun.wait()
        with places.take("placement", "a"):
            served.append(threading.Event().wait(0.1))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    assert len(served) == 3
