# SPDX-License-Identifier: Apache-2.0
"""Readings of sensors are among the agent's metrics, and go with its reports."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from typing import Any

import pytest

from cyborg import metrics
from cyborg.agent import discovery
from cyborg.drivers import fake, pci, registry
from cyborg.drivers.nvidia import gpu as nvidia_gpu
from cyborg.drivers.nvidia import nvml_reader, sensors
from cyborg.tests.contract import passes
from cyborg.tests.heard_reports import PATIENCE

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


def an_agent(text: str, names: list[str]) -> tuple[registry.Registry, discovery.Discovery]:
    """The drivers and the discovery of a new agent, which shows nothing of another one's."""
    for driver in (*DRIVERS, "nvidia_gpu_driver"):
        metrics.devices_read(driver, {})
    conf = passes.configured(text, names, "host-1")
    loaded, measured = registry.load(conf), metrics.may_be_read(conf)
    looking = discovery.Discovery("host-1", loaded.drivers, timeout=60, measured=measured)
    return loaded, looking


def shown() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for metric in metrics.REGISTRY.collect():
        for sample in metric.samples:
            if sample.name.startswith("cyborg_agent_device_"):
                name = sample.name.removeprefix("cyborg_agent_device_")
                found.setdefault(sample.labels["address"], {})[name] = sample.value
    return found


def after_passes(text: str, *broken: str) -> list[dict[str, dict[str, float]]]:
    """The readings after a pass, and after one more when these files hold no number."""
    _loaded, looking = an_agent(text, DRIVERS)
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
    # Nothing is read that nobody can look at.
    assert simulated.call(after_passes, SPEC) == [{}, {}]


def after_a_failure(text: str) -> list[dict[str, dict[str, float]]]:
    """The readings after a pass, and after one in which the driver fails."""
    loaded, looking = an_agent(text, ["amd_gpu_driver"])
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


def test_the_number_of_series_is_bounded() -> None:
    many = {f"0000:{number:02x}:00.0": {"power_watts": 1.0} for number in range(200)}

    metrics.devices_read("test", many)
    count = len(shown())
    metrics.devices_read("test", {})

    assert (count, shown()) == (metrics.READINGS_MAX, {})


NVML = "[metrics]\nport = 9100\n[gpu_devices]\nread_sensors = true\nenabled_vgpu_types = 1137\n"
DIVIDED = {"card": "h100", "name": "divided", "vfs": 4}


@pytest.fixture
def nvml(tmp_path: pathlib.Path) -> pathlib.Path:
    shutil.copy(pathlib.Path(__file__).parents[2] / "nvml_stub.py", tmp_path / "pynvml.py")
    (tmp_path / "opened").touch()
    return tmp_path


def of_gpus(
    folder: str, text: str, shows: list[dict[str, Any]], timeout: float = 20
) -> list[tuple[dict[str, dict[str, float]], dict[str, str | None], str | None]]:
    """What passes show when GPUs show this after each: readings, health by address, the error."""
    find, run = f"sys.path.insert(0, {folder!r})", f"run_path({nvml_reader.__file__!r}"
    program = f"import sys; from runpy import run_path; {find}; {run}, run_name='__main__')"
    sensors._COMMAND = [sys.executable, "-c", program]
    sensors._TIMEOUT = timeout
    text = f"[DEFAULT]\nstate_path = {folder}\n{text}"
    loaded, looking = an_agent(text, ["nvidia_gpu_driver"])
    driver = loaded.drivers["nvidia_gpu_driver"]
    assert isinstance(driver, nvidia_gpu.NvidiaGpuDriver)
    seen = []
    for show in shows:
        pathlib.Path(folder, "gpus").write_text(json.dumps(show))
        findings = looking.run()
        looking.remember()
        assert driver._sensors._reader is not None
        driver._sensors._reader.join()
        (devices,) = findings.devices.values()
        healths = {pci.join(each.control_path.cpid_info): each.unhealthy for each in devices}
        seen.append((shown(), healths, findings.errors.get("nvidia_gpu_driver")))
    return seen


@pytest.mark.parametrize("looked_at", ["[metrics]\nport = 9100", "[agent]\nreport_readings = true"])
def test_a_gpu_that_stays_with_the_host_is_read_and_no_other(simulate, nvml, looked_at):
    simulated = simulate({"cards": [DIVIDED, {"card": "t4", "name": "whole"}]})
    divided = simulated.card("divided")
    show = {divided: {"temperature": 61, "milliwatts": 305500, "used": 4096, "corrected": 3}}

    text = NVML.replace("[metrics]\nport = 9100", looked_at)

    first, second, third = simulated.call(of_gpus, str(nvml), text, [show, {}, show])

    assert first[0] == {}
    # Once for the card, not for each of its parts; what it does not have is left out.
    assert second[0] == {
        divided: {
            "temperature_celsius": 61.0,
            "power_watts": 305.5,
            "memory_used_bytes": 4096.0,
            "ecc_correctable_errors": 3.0,
        }
    }
    assert len(second[1]) > 1
    # What could not be read is not shown as it was.
    assert third[0] == {}
    assert "NVML cannot read GPU" in third[2]
    assert set((nvml / "opened").read_text().split()) == {divided}


def test_a_sensor_that_nvml_refuses_costs_no_other(simulate, nvml):
    """A card in MIG mode shows some of them to root only."""
    simulated = simulate({"cards": [DIVIDED]})
    divided = simulated.card("divided")
    refused = {"temperature": "Insufficient Permissions", "used": "Insufficient Permissions"}
    show = {divided: {**refused, "milliwatts": 305500, "uncorrected": 3}}
    # A warning that the library prints while it is loaded is no reading.
    warning = {"warns": "FutureWarning: another package\n", divided: {"temperature": 61}}

    _, (readings, healths, error), (later, _, no_error) = simulated.call(
        of_gpus, str(nvml), NVML + "ecc_uncorrectable_errors = 2\n", [show, warning, warning]
    )

    assert readings == {divided: {"power_watts": 305.5, "ecc_uncorrectable_errors": 3.0}}
    assert set(healths.values()) != {None}
    assert error == (
        "[gpu_devices] read_sensors: NVML cannot read temperature_celsius, memory_used_bytes of "
        f"GPU {divided}: Insufficient Permissions"
    )
    assert (later, no_error) == ({divided: {"temperature_celsius": 61.0}}, None)


def test_gpus_that_hang_or_have_no_library_cost_a_sentence(simulate, nvml):
    simulated = simulate({"cards": [DIVIDED]})
    show = {"sleep": 60}

    _, hung = simulated.call(of_gpus, str(nvml), NVML, [show, show], 0.2)
    (nvml / "pynvml.py").unlink()
    _, absent = simulated.call(of_gpus, str(nvml), NVML, [show, show])

    assert hung[0] == absent[0] == {}
    assert hung[2] == "[gpu_devices] read_sensors: NVML does not answer"
    assert absent[2].endswith("the Python package nvidia-ml-py is not installed")
    assert hung[1].keys() == absent[1].keys()


def test_a_gpu_with_ecc_errors_is_unhealthy_until_it_counts_anew(simulate, nvml):
    simulated = simulate({"cards": [DIVIDED]})
    divided = simulated.card("divided")
    text = NVML.replace("port = 9100", "") + "ecc_uncorrectable_errors = 2\n"
    shows = [{divided: {"uncorrected": count}} for count in (1, 2, 2)]

    seen = simulated.call(of_gpus, str(nvml), text, [*shows, {}, shows[0]])
    later = simulated.call(of_gpus, str(nvml), text, [shows[0], {}])

    sentence = f"The GPU {divided} has had uncorrectable errors of its memory (ECC)"
    ill = [set(healths.values()) for _, healths, _ in [*seen, *later]]
    # As it was while it cannot be read, and for the next agent.
    assert ill == [{None}, {None}, {sentence}, {sentence}, {sentence}, {sentence}, {None}]
    assert all(readings == {} for readings, _, _ in seen)


def of_parts(text: str) -> dict[str, dict[str, float]]:
    """The readings of each device that a pass finds."""
    _loaded, looking = an_agent(text, ["amd_gpu_driver"])
    return {place: dict(found) for place, found in looking.run().readings.items()}


def test_a_part_of_a_card_has_the_readings_of_the_card(simulate):
    simulated = simulate({"cards": [GUESTS, {**GPU, "vfs": 2, "vf_driver": "vfio-pci"}]})

    told = simulated.call(of_parts, SERVED)

    assert told
    # A guest has the other card, and nothing is told of it.
    assert simulated.card("guests") not in told
    assert {each["temperature_celsius"] for each in told.values()} == {52.5}


@pytest.fixture
def sensor(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often the fake driver's sensor was read: its devices get hotter and hotter."""
    count: list[float] = []

    def readings(*_given: object) -> dict[str, Any]:
        count.append(41.0 + len(count))
        return {
            "temperature_celsius": count[-1],
            "power_watts": float("nan"),
            "memory_used_bytes": "many",
            "x" * 10_000: 1.0,
        }

    monkeypatch.setattr(fake.FakeDriver, "readings", readings, raising=False)
    return count


def test_readings_go_with_each_report(run_conductor, run_agent, sensor):
    """Also with those that say the same, of which there is only the digest."""
    conductor = run_conductor()

    run_agent(report_interval=1, report_readings=True)

    seen = [conductor.reports.get(timeout=PATIENCE) for _ in range(3)]
    values = [list(each.readings.values()) for each in seen]
    assert values == [[{"temperature_celsius": degrees}] for degrees in (41.0, 42.0, 43.0)]
    assert conductor.whole == 1


def test_no_sensor_is_read_unless_somebody_may_look(run_conductor, run_agent, sensor):
    conductor = run_conductor()

    run_agent(report_interval=1)

    assert [conductor.reports.get(timeout=PATIENCE).readings for _ in range(2)] == [{}, {}]
    assert sensor == []
