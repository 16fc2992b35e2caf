# SPDX-License-Identifier: Apache-2.0
"""``cyborg-agent discover`` as an operator runs it: on a host, with a file, and nothing else."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

Discover = Callable[..., subprocess.CompletedProcess[str]]

GPU = "host-1_0000:09:00.0"
QAT = [f"host-1_0000:11:01.{number}" for number in range(2)]
ABSENT = "No driver of this name is installed"
SPEC = {"cards": ["t4", {"card": "qat-4xxx", "vfs": 2}]}


@pytest.fixture
def host(simulate_live) -> Any:
    return simulate_live(SPEC)


@pytest.fixture
def discover(host: Any, tmp_path: pathlib.Path) -> Discover:
    """Run the command with these lines in the agent's section of its file."""

    def run(
        *arguments: str, drivers: str = "nvidia_gpu_driver,intel_qat_driver", more: str = ""
    ) -> Any:
        config = tmp_path / "cyborg.conf"
        # The log would be the agent's, of which this user need not be the owner.
        config.write_text(
            f"[DEFAULT]\nhost = host-1\nlog_file = {tmp_path}/absent/agent.log\n"
            f"[agent]\nenabled_drivers = {drivers}\nresource_provider_name = host-1.example\n"
            f"{more}"
        )
        command = [sys.executable, "-m", "cyborg.cmd.agent", "--config-file", str(config)]
        return host.run(*command, "discover", *arguments)

    return run


def by_name(text: str) -> dict[str, dict[str, Any]]:
    """The providers of a JSON answer."""
    devices = json.loads(text)["devices"]
    return {each["name"]: each for device in devices for each in device["providers"]}


def test_what_would_be_reported_is_shown_and_nothing_is_written(host, discover):
    done = discover("--format", "json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["host"], document["node"]) == ("host-1", "host-1.example")
    assert document["errors"] == {}
    providers = by_name(done.stdout)
    assert sorted(providers) == sorted([GPU, *QAT])
    assert providers[GPU]["inventory"] == {"PGPU": {"total": 1, "reserved": 0}}
    assert "CUSTOM_NVIDIA_1EB8" in providers[GPU]["traits"]
    (handle,) = providers[GPU]["attach_handles"]
    place = {"domain": "0000", "bus": "09", "device": "00", "function": "0"}
    assert handle == {"attach_type": "PCI", "attach_info": place}
    assert host.writes() == []


def test_people_get_a_table(host, discover):
    done = discover(drivers="nvidia_gpu_driver,fake_driver")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Host host-1, node host-1.example"
    assert lines[2].split() == [
        "DRIVER",
        "DEVICE",
        "PROVIDER",
        "INVENTORY",
        "TRAITS",
        "HANDLES",
    ]
    assert any(GPU in line and "PGPU 1" in line for line in lines)
    assert any("host-1_FakeDevice" in line and "FPGA 16" in line for line in lines)
    assert lines[-1].strip() == "and 13 more"
    assert host.writes() == []


@pytest.mark.parametrize(
    ("loaded", "shown"), [(None, "no function"), ("aes-128", "aes-128")]
)
def test_people_see_what_programmable_devices_run(discover, tmp_path, loaded, shown):
    state = tmp_path / "loaded"
    if loaded is not None:
        state.mkdir()
        (state / "host-1_FakeDevice.function").write_text(loaded)
    options = f"[fake_driver]\nprogram_mode = single-program\nstate_dir = {state}\n"

    done = discover(drivers="fake_driver", more=options)

    assert done.returncode == 0, done.stderr
    header, first, second = done.stdout.splitlines()[2:5]
    place = header.index("PROGRAM")
    assert first[place:].startswith("single-program")
    assert second[place:].startswith(shown)


def test_what_ails_would_be_reserved_and_a_driver_that_fails_hides_no_other(host, discover):
    host.change("degrade", host.card("t4"), width=4)

    done = discover("--format", "json", drivers="unheard_of,nvidia_gpu_driver")

    assert done.returncode == 1
    assert json.loads(done.stdout)["errors"] == {"unheard_of": ABSENT}
    assert by_name(done.stdout)[GPU]["inventory"] == {"PGPU": {"total": 1, "reserved": 1}}


def test_people_read_what_is_wrong(host, discover):
    host.change("degrade", host.card("t4"), width=4)

    done = discover(drivers="unheard_of,nvidia_gpu_driver")

    assert done.returncode == 1
    assert f"Driver unheard_of: {ABSENT}" in done.stdout
    assert "Device PCI 0000:09:00.0 is unhealthy: " in done.stdout


def test_drivers_are_named_that_are_not_enabled(discover):
    named = ["--driver", "amd_gpu_driver", "--driver", "intel_fpga_driver"]

    done = discover(*named, drivers="unheard_of")

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("No driver found a device.\n")
