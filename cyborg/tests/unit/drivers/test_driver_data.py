# SPDX-License-Identifier: Apache-2.0
"""What a driver may not report, since some database would refuse it with the whole host."""

from __future__ import annotations

import pytest

from cyborg.drivers import base
from cyborg.tests import hosts


@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": {"k" * 256: "v"}},
        {"attributes": {"key": "a\0b"}},
        {"attributes": {"key": "\udcff"}},
        {"attributes": {"key": 5}},
        {"num_accelerators": 2**31},
        {"name": "host-1_\0"},
        {"program_mode": "static"},
        {"function": "9aeffe5f"},
        {"program_mode": "dynamic", "function": "a b"},
        {"program_mode": "dynamic", "function": "a" * 129},
        {"program_mode": "dynamic", "function_vendor": "intel"},
        {"program_mode": "dynamic", "function_vendor": "V" * 51},
    ],
)
def test_a_deployable_that_cannot_be_stored_is_refused(changes: dict[str, object]) -> None:
    fields = {"name": "host-1_a"} | changes
    with pytest.raises((ValueError, TypeError)):
        hosts.deployable(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parents", "why"),
    [
        ({"host-1_a": "host-1_c"}, "which its device lacks"),
        ({"host-1_a": "host-1_a"}, "is below itself"),
        ({"host-1_a": "host-1_b", "host-1_b": "host-1_a"}, "is below itself"),
    ],
)
def test_a_deployable_is_below_another_of_its_device(parents: dict[str, str], why: str) -> None:
    parts = [
        hosts.deployable(name, [number], parent=parents.get(name))
        for number, name in enumerate(("host-1_a", "host-1_b"))
    ]
    with pytest.raises(ValueError, match=why):
        hosts.device("a", *parts)


@pytest.mark.parametrize(
    "changes", [{"std_board_info": "a\0"}, {"vendor_board_info": "\udcff"}, {"vendor": "\udcff"}]
)
def test_a_device_that_cannot_be_stored_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="holds what is no text"):
        hosts.device("a", **changes)


@pytest.mark.parametrize(
    ("function", "verified_by"),
    [(None, ""), (None, "a" * 256), (None, "a\0"), ("a b", "sysfs"), ("a" * 129, "sysfs")],
)
def test_what_came_of_programming_must_be_storable(function, verified_by) -> None:
    with pytest.raises(ValueError, match=r"verified_by|is no id"):
        base.Programmed(function=function, verified_by=verified_by)
