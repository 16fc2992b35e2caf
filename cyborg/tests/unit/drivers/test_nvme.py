# SPDX-License-Identifier: Apache-2.0
"""How an NVMe controller is erased: what it can, what is wanted, what became of it."""

from __future__ import annotations

import json

import pytest

from cyborg.drivers.nvme import controllers
from cyborg.drivers.nvme.admin_commands import Sanitize, State, sanitize_methods, state_of

BLOCK, CRYPTO = Sanitize.BLOCK, Sanitize.CRYPTO


def identity(capabilities: int) -> bytes:
    """What a controller says of itself, but for its abilities all ones."""
    return b"\xff" * 328 + capabilities.to_bytes(4, "little") + b"\xff" * 3764


@pytest.mark.parametrize(
    ("capabilities", "ways"),
    [
        (0, set()),
        (1, {CRYPTO}),
        (2, {BLOCK}),
        (3, {CRYPTO, BLOCK}),
        (0xE0000004, set()),  # only overwriting, and bits of other meanings
    ],
)
def test_what_a_controller_can(capabilities: int, ways: set[Sanitize]) -> None:
    assert sanitize_methods(identity(capabilities)) == ways


@pytest.mark.parametrize(
    ("status", "state"),
    [(0x0, State.NEVER), (0x101, State.DONE), (0x2, State.RUNNING), (0x103, State.FAILED)],
)
def test_what_became_of_an_erasure(status: int, state: State) -> None:
    log = b"\xff\xff" + status.to_bytes(2, "little") + b"\0" * 28

    assert state_of(log) == state


@pytest.mark.parametrize(
    ("action", "strategy", "able"),
    [
        ("sanitize", "auto", set()),
        ("auto", "crypto", {BLOCK}),
        ("sanitize", "block", {CRYPTO}),
    ],
)
def test_a_way_that_it_has_not_is_never_replaced(action, strategy, able) -> None:
    with pytest.raises(RuntimeError, match=f"no {action} erasure with strategy {strategy}"):
        controllers._method(action, strategy, able)


def test_a_wrong_way_is_told(conf) -> None:
    conf.set_override("device_spec", [json.dumps({"clear_action": "shred"})], group="nvme")

    with pytest.raises(ValueError, match=r"\[nvme\] device_spec .*clear_action must be one of"):
        controllers.NvmeDriver(conf)
