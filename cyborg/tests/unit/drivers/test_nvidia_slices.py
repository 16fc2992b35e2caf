# SPDX-License-Identifier: Apache-2.0
"""Which MIG instances there is room for, by the placements that NVIDIA's guide shows."""

from __future__ import annotations

import pytest

from cyborg.drivers import registry
from cyborg.drivers.nvidia import slices
from cyborg.tests.contract import passes

H100, H200, B200, A30, A100 = (size * 1024 for size in (80, 141, 180, 24, 40))


FITTING = [
    ("7x1g.10gb", H100),
    ("1x3g.40gb_4x1g.10gb", H100),
    ("1x4g.40gb_1x3g.40gb", H100),
    ("1x3g.40gb_2x2g.20gb", H100),
    ("1x4g.40gb_1x2g.20gb_1x1g.10gb", H100),
    ("3x2g.20gb_1x1g.20gb", H100),
    ("1x1g.10gb.me_6x1g.10gb", H100),
    ("1x7g.80gb", None),
    ("1x3g.71gb_4x1g.18gb", H200),
    ("1x3g.90gb_1x2g.45gb_2x1g.23gb", B200),
    ("1x2g.12gb_2x1g.6gb", A30),
    ("2x3g.20gb", A100),
]
TOO_LARGE = [
    ("8x1g.10gb", H100),
    ("2x3g.40gb_1x1g.10gb", H100),
    ("2x4g.40gb", None),
    ("4x2g.20gb", H100),
    ("2x1g.10gb.me", H100),
    ("7x1g.18gb", H100),
    ("7x1g.10gb", H200),
    ("5x1g.6gb", A30),
    ("1x5g.50gb", H100),
]


@pytest.mark.parametrize(("layout", "memory"), [*FITTING, *TOO_LARGE])
def test_which_layouts_fit(layout: str, memory: int | None) -> None:
    assert slices._has_room(layout, memory) == ((layout, memory) in FITTING)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("8x1g.10gb", "8x1g.10gb does not fit"),
        # The card would show it under another name than was asked for.
        ("4x1g.10gb_1x3g.40gb", "write 4x1g.10gb_1x3g.40gb as 1x3g.40gb_4x1g.10gb"),
        ("1x1g.10gb_6x1g.10gb", "write 1x1g.10gb_6x1g.10gb as 7x1g.10gb"),
    ],
)
def test_a_layout_that_no_card_can_show_is_an_error_that_names_the_option(
    name: str, told: str
) -> None:
    text = f"[gpu_devices]\nlayouts = 7x1g.10gb, {name}\n"
    loaded = registry.load(passes.configured(text, ["nvidia_gpu_driver"], "host-1"))

    (error,) = loaded.errors.values()
    assert f"[gpu_devices] layouts: {told}" in error


@pytest.mark.parametrize(
    ("driver", "group", "name"),
    [
        ("intel_dsa_driver", "intel_dsa_driver", "4"),
        ("intel_dsa_driver", "intel_dsa_driver", "4-mixed"),
        ("amd_gpu_driver", "amd_gpu_driver", "CPX"),
        ("amd_gpu_driver", "amd_gpu_driver", "NPX-NPS1"),
    ],
)
def test_a_name_that_is_no_layout_is_an_error_too(driver: str, group: str, name: str) -> None:
    text = f"[{group}]\nlayouts = {name}\n"
    loaded = registry.load(passes.configured(text, [driver], "host-1"))

    assert f"[{group}] layouts: '{name}' is not a layout; use " in loaded.errors[driver]
