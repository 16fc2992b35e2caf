# SPDX-License-Identifier: Apache-2.0
"""Places of calls to other services, and what is told of Placement's refusals."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import Any

import pytest
import requests

from cyborg.peers import answers
from cyborg.placement import client


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


def refusal(detail: Any, code: Any = "placement.undefined_code") -> client.PlacementError:
    answer = requests.Response()
    answer.status_code, answer.reason = 409, "Conflict"
    answer.request = requests.Request("PUT", "http://placement/traits/X").prepare()
    answer._content = json.dumps({"errors": [{"code": code, "detail": detail}]}).encode()
    return client._error("PUT /traits/X", answer)


def test_what_placement_says_is_told() -> None:
    told = refusal("No such trait(s): CUSTOM_X.\n\n   ")
    assert str(told).endswith("409 to PUT /traits/X: No such trait(s): CUSTOM_X.")


def test_a_long_or_forged_text_is_short_and_on_one_line() -> None:
    assert len(str(refusal("x" * 3_000_000))) < 1200
    assert str(refusal("a\x1b[31m\x00b\nc")).endswith(": a?[31m?b c")


@pytest.mark.parametrize("odd", [[], {}, None, 7, ["x"]])
def test_an_odd_text_or_code_is_no_fault_of_ours(odd: Any) -> None:
    assert isinstance(refusal(odd), client.RequestRefused)
    assert isinstance(refusal("x", odd), client.RequestRefused)
