# SPDX-License-Identifier: Apache-2.0
"""What sysfs says may be nonsense: it is told, and does no harm."""

from __future__ import annotations

import pytest

from cyborg.tests.contract import passes


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        ("mdev_driver", '[mdev]\nmdev_spec = {"mdev_type": "nvidia-230"}\n'),
        ("nvidia_gpu_driver", "[gpu_devices]\nenabled_vgpu_types = nvidia-230\n"),
    ],
)
def test_a_parent_that_can_have_any_number_does_not_fill_the_memory(simulate, driver, text):
    """As much as an unsigned number can be, which is how some drivers say that they count none."""
    simulated = simulate({"cards": ["t4"]})
    kind = f"{simulated.path(simulated.card('t4'))}/mdev_supported_types/nvidia-230"
    simulated.files.put(f"{kind}/available_instances", 2**32 - 1)

    (only,) = simulated.call(passes.run, [driver], text)

    assert only.devices == {driver: ()}
    assert only.unread == {simulated.card("t4")}
    assert "There cannot be 4294967295 mediated devices" in only.errors[driver]
