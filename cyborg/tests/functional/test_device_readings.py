# SPDX-License-Identifier: Apache-2.0
"""What devices' sensors show is among the agent's metrics, by driver and address."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from cyborg import metrics
from cyborg.agent import discovery
from cyborg.drivers import registry
from cyborg.tests.contract import passes

DRIVERS = ["amd_gpu_driver", "nvme_driver"]
SPEC = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'
SERVED = f"[metrics]\nport = 9100\n{SPEC}"
GPU = {
    "card": "mi210",
    "name": "gpu",
    "attributes": {
        "hwmon/hwmon3/temp1_input": "41000",
        "hwmon/hwmon3/temp2_input": "52500",
        "hwmon/hwmon3/power1_average": "91000000",
        "ras/umc_err_count": "ue: 1\nce: 2",
        "ras/gfx_err_count": "ue: 3\nce: 0",
    },
}
DISK = {
    "card": "nvme-pm1733",
    "name": "disk",
    "nodes": {"nvme/nvme{n}": {"attributes": {"hwmon2/temp1_input": "38850"}}},
}
GUESTS = {**GPU, "name": "guests", "driver": "vfio-pci"}


def shown() -> dict[str, dict[str, float]]:
    """The readings, by address and name."""
    found: dict[str, dict[str, float]] = {}
    for metric in metrics.REGISTRY.collect():
        for sample in metric.samples:
            if sample.name.startswith("cyborg_agent_device_"):
                name = sample.name.removeprefix("cyborg_agent_device_")
                found.setdefault(sample.labels["address"], {})[name] = sample.value
    return found


def after_a_failure(text: str) -> list[dict[str, dict[str, float]]]:
    """What is shown after a pass, and after one in which the driver fails."""
    loaded = registry.load(passes.configured(text, ["amd_gpu_driver"], "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    looking.run()
    seen = [shown()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded.drivers["amd_gpu_driver"], "discover", lambda _host: 1 / 0)
        assert looking.run().errors
    return [*seen, shown()]


def test_a_driver_that_fails_shows_no_readings_of_before(simulate):
    before, after = simulate({"cards": [GPU]}).call(after_a_failure, SERVED)

    assert before
    assert after == {}


def after_passes(text: str, *broken: str) -> list[dict[str, dict[str, float]]]:
    """What is shown after a pass, and after one more when these files hold no number."""
    loaded = registry.load(passes.configured(text, DRIVERS, "host-1"))
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60)
    seen = []
    for files in ((), broken):
        for path in files:
            pathlib.Path(path).write_text("no number")
        findings = looking.run()
        assert findings.errors == {}
        assert all(findings.devices.values())
        seen.append(shown())
    return seen


def test_what_sensors_show_is_shown_as_long_as_they_do(simulate: Any) -> None:
    simulated = simulate({"cards": [GPU, DISK, GUESTS]})
    gpu, disk = simulated.card("gpu"), simulated.card("disk")
    names = [f"/sys/bus/pci/devices/{gpu}/hwmon/hwmon3/temp{each}_input" for each in (1, 2)]

    first, second = simulated.call(after_passes, SERVED, *names)

    assert first == {
        gpu: {
            "temperature_celsius": 52.5,
            "power_watts": 91.0,
            "memory_used_bytes": 11177984.0,
            "ecc_correctable_errors": 2.0,
            "ecc_uncorrectable_errors": 4.0,
        },
        disk: {"temperature_celsius": 38.85},
    }
    del first[gpu]["temperature_celsius"]
    assert second == first


def test_nothing_is_read_that_nobody_can_look_at(simulate: Any) -> None:
    simulated = simulate({"cards": [GPU, DISK]})

    assert simulated.call(after_passes, SPEC) == [{}, {}]


def test_the_number_of_series_is_bounded() -> None:
    many = {f"0000:{number:02x}:00.0": {"power_watts": 1.0} for number in range(200)}

    metrics.devices_read("test", many)
    count = len(shown())
    metrics.devices_read("test", {})

    assert (count, shown()) == (metrics.READINGS_MAX, {})
