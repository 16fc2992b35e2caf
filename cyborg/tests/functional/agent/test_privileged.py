# SPDX-License-Identifier: Apache-2.0
"""What is written to a host: in order, once, and with the errors of its kernel."""

from __future__ import annotations

import errno
import functools
import os
import pathlib
import sys
from typing import Any

import pytest

from cyborg.drivers import privileged
from cyborg.tests.privileged_acts import act, unbind

UUID = "11111111-2222-3333-4444-555555555555"
OTHER = "11111111-2222-3333-4444-666666666666"
C4, C10 = "nvidia-468", "nvidia-471"


@pytest.fixture
def gpu(simulate_live):
    """A host with a card that has two virtual functions, which mediated devices are made on."""
    return simulate_live({"cards": [{"card": "a100", "vfs": 2}]})


@pytest.fixture
def parents(gpu):
    pf = gpu.device(gpu.card("a100"))
    return [(pf / f"virtfn{number}").readlink().name for number in range(2)]


@pytest.fixture
def nvme(simulate_live):
    """A host with a controller that can have virtual functions, which no driver takes by itself."""
    host = simulate_live({"cards": ["nvme-pm1733"]})
    off = functools.partial(act, on=False)
    assert host.call(off, "set_drivers_autoprobe", host.card("nvme-pm1733")) == ""
    return host


def numvfs(host) -> str:
    return (host.device(host.card("nvme-pm1733")) / "sriov_numvfs").read_text().strip()


def test_a_mediated_device_is_made_once_and_removed_once(gpu, parents):
    for _ in range(2):
        assert gpu.call(act, "create_mdev", parents[0], C4, UUID) == ""

    path = gpu.path(f"/sys/bus/mdev/devices/{UUID}")
    assert (path / "mdev_type").readlink().name == C4
    assert path.readlink().parent.name == parents[0]
    # A uuid that is another device's is refused.
    assert gpu.call(act, "create_mdev", parents[0], C10, UUID) == "EEXIST"
    assert gpu.call(act, "create_mdev", parents[1], C4, UUID) == "EEXIST"
    # A function of this card holds one device, of a type that the card has begun with.
    assert gpu.call(act, "create_mdev", parents[0], C4, OTHER) in {"EUSERS", "ENOSPC"}
    assert gpu.call(act, "create_mdev", parents[1], "nvidia-1", OTHER) == "ENOENT"
    assert gpu.call(act, "create_mdev", "0000:ff:00.0", C4, OTHER) == "ENOENT"

    for _ in range(2):
        assert gpu.call(act, "remove_mdev", UUID) == ""
    assert not gpu.path(f"/sys/bus/mdev/devices/{UUID}").exists()
    assert gpu.call(act, "remove_mdev", OTHER) == ""


def test_a_type_that_is_not_shown_is_not_taken_away(simulate_live):
    host = simulate_live({"cards": [{"card": "h100", "vfs": 2}]})
    pf = host.card("h100")
    vf = (host.device(pf) / "virtfn0").readlink().name

    assert host.call(act, "set_vgpu_type", vf, "0") == ""
    assert host.call(act, "set_vgpu_type", "0000:fe:00.0", "0") == ""
    # Its driver shows no such file, as when it is not bound.
    assert host.call(act, "set_vgpu_type", pf, "0") == "ENOENT"


def test_virtual_functions_are_made_and_their_number_changed_over_none(nvme):
    pf = nvme.card("nvme-pm1733")

    for count in (4, 4, 2, 0):
        assert nvme.call(act, "set_numvfs", pf, count) == ""
        assert numvfs(nvme) == str(count)

    written = [text for path, text in nvme.writes() if path.endswith("sriov_numvfs")]
    assert written == ["4", "0", "2", "0"]
    # More than there can be leave those there are.
    nvme.call(act, "set_numvfs", pf, 2)
    assert nvme.call(act, "set_numvfs", pf, 1000) == "ERANGE"
    assert numvfs(nvme) == "2"


def test_no_virtual_function_is_taken_away_that_anybody_may_have(nvme):
    pf = nvme.card("nvme-pm1733")
    nvme.call(act, "set_numvfs", pf, 2)
    vf = (nvme.device(pf) / "virtfn1").readlink().name
    for driver in ("nvme", "vfio-pci"):
        assert nvme.call(act, "bind_driver", vf, driver) == ""
        for count in (4, 1, 0):
            assert nvme.call(act, "set_numvfs", pf, count) == "EBUSY"
        assert numvfs(nvme) == "2"
        nvme.call(unbind, vf)

    assert nvme.call(act, "set_numvfs", pf, 4) == ""


def test_no_virtual_function_is_taken_away_that_has_a_mediated_device(gpu, parents):
    for parent in parents:
        gpu.call(unbind, parent)
    assert gpu.call(act, "bind_driver", parents[0], "nvidia") == ""
    assert gpu.call(act, "create_mdev", parents[0], C4, UUID) == ""

    assert gpu.call(act, "set_numvfs", gpu.card("a100"), 0) == "EBUSY"
    assert gpu.path(f"/sys/bus/mdev/devices/{UUID}").exists()


def test_a_function_goes_over_to_another_driver_and_stays_there(nvme):
    address = nvme.card("nvme-pm1733")
    device = nvme.device(address)

    for _ in range(2):
        assert nvme.call(act, "bind_driver", address, "vfio-pci") == ""
        assert (device / "driver").readlink().name == "vfio-pci"
    assert (device / "driver_override").read_text().strip() == "vfio-pci"
    # One that is not loaded takes nothing away.
    assert nvme.call(act, "bind_driver", address, "unheard-of") == "ENODEV"
    assert (device / "driver").readlink().name == "vfio-pci"


@pytest.mark.parametrize("error", ["EBUSY", "ENOENT"])
def test_a_function_that_a_guest_has_open_is_not_reset(tmp_path, monkeypatch, error):
    """Only one process can have a VFIO group open; without the file there is none that has."""
    device, group = tmp_path / "devices/0000:3d:01.0", tmp_path / "vfio/27"
    device.mkdir(parents=True)
    (device / "reset").touch()
    (device / "driver").symlink_to("vfio-pci")
    (device / "iommu_group").symlink_to("27")
    real = os.open

    def open_it(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if pathlib.Path(path) == group:
            raise OSError(getattr(errno, error), "the kernel's words")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(privileged, "_PCI", tmp_path)
    monkeypatch.setattr(privileged, "_DEV", tmp_path)
    monkeypatch.setattr(privileged.context, "client_mode", False)
    monkeypatch.setattr(os, "open", open_it)

    is_free = error == "ENOENT"
    assert act("reset_function", device.name) == ("" if is_free else error)
    assert (device / "reset").read_text() == ("1" if is_free else "")


NO_NAMES: list[tuple[Any, ...]] = [
    ("create_mdev", "../../devices", C4, UUID),
    ("create_mdev", "..", C4, UUID),
    ("create_mdev", "0000:09:00.4", "../nvidia-468", UUID),
    ("create_mdev", "0000:09:00.4", C4, "../" + UUID),
    ("create_mdev", "0000:09:00.4", C4, UUID + "\n"),
    ("remove_mdev", "0000:09:00.0"),
    ("remove_mdev", UUID.replace("1", "A")),
    ("set_numvfs", "0000:09:00.0/../0000:09:00.0", 1),
    ("set_numvfs", "0000:09:00.0\0", 1),
    ("bind_driver", "0000:09:00.8", "vfio-pci"),
    ("bind_driver", "0000:09:00.0", "../vfio-pci"),
    ("bind_driver", "0000:09:00.0", ".."),
    ("bind_driver", ".", "vfio-pci"),
    ("bind_driver", "", "vfio-pci"),
]


def refusals() -> list[str]:
    return [act(*call) for call in NO_NAMES]


def test_nothing_but_names_becomes_part_of_a_path(gpu):
    before = gpu.writes()

    for call, refusal in zip(NO_NAMES, gpu.call(refusals), strict=True):
        assert "cannot be part of a path" in refusal, call
    assert gpu.writes() == before


HELPED = f"""
import errno, os, pathlib, sys
from oslo_config import cfg
from cyborg.drivers import privileged
cfg.CONF(["--config-file", sys.argv[1]], project="cyborg")
privileged.act_alone()
assert privileged.context.client_mode
parent = sys.argv[2]
privileged.create_mdev(parent, "{C4}", "{UUID}")
try:
    privileged.create_mdev(parent, "{C4}", "{OTHER}")
except OSError as exc:
    print(errno.errorcode[exc.errno], exc)
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        command, status = (path / "cmdline").read_text(), (path / "status").read_text()
    except OSError:
        continue
    # Ours: other tests may have helpers at the same time.
    own = sys.argv[1] in command
    if own and "--privsep_context\\0cyborg.drivers.privileged.context" in command:
        facts = dict(line.split(":\\t", 1) for line in status.splitlines() if ":\\t" in line)
        print(facts["Uid"].split()[1], int(facts["CapEff"], 16), int(facts["CapPrm"], 16))
"""

#: The bit of CAP_DAC_OVERRIDE.
_DAC_OVERRIDE = 1 << 1


def test_a_helper_does_it_with_one_capability_for_a_process_that_is_not_root(
    gpu, parents, tmp_path
):
    config = tmp_path / "cyborg.conf"
    helper = f"{sys.executable} -m oslo_privsep.daemon --config-file {config}"
    config.write_text(f"[cyborg_sys_admin]\nhelper_command = {helper}\n")
    # As systemd does with User= and AmbientCapabilities=.
    user = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    capability = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]

    done = gpu.run(
        "setpriv", *user, *capability, sys.executable, "-c", HELPED, str(config), parents[0]
    )

    assert done.returncode == 0, done.stderr
    refusal, credentials = done.stdout.splitlines()
    assert refusal.split()[0] in {"EUSERS", "ENOSPC"}
    assert f"'{OTHER}' to /sys/class/mdev_bus/{parents[0]}" in refusal
    assert credentials == f"65534 {_DAC_OVERRIDE} {_DAC_OVERRIDE}"
    assert gpu.path(f"/sys/bus/mdev/devices/{UUID}").exists()
