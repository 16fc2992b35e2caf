# SPDX-License-Identifier: Apache-2.0
"""Writes to a simulated sysfs: they act, are refused and are told of as by a kernel."""

from __future__ import annotations

import errno
import pathlib
import socket
import threading

import pytest

from cyborg.tests import service
from cyborg.tests.simulated.listed import functions, listen

UUID = "11111111-2222-3333-4444-555555555555"
OTHER = "11111111-2222-3333-4444-666666666666"


def echo(text: str, path: pathlib.Path) -> str:
    """Write as a shell's echo does; the name of the error, or an empty text."""
    try:
        # A buffered file would write again what was refused.
        with path.open("wb", buffering=0) as file:
            file.write(f"{text}\n".encode())
    except OSError as exc:
        return errno.errorcode[exc.errno or 0]
    return ""


def text(path: pathlib.Path) -> str:
    return path.read_text().strip()


def driver(function: pathlib.Path) -> str | None:
    link = function / "driver"
    return link.readlink().name if link.is_symlink() else None


@pytest.fixture
def nic(simulate_live):
    """A host with one network card, and the directory of its function."""
    host = simulate_live({"cards": ["e810"]})
    return host, host.device(host.card("e810"))


def test_virtual_functions_are_made_and_taken_away(nic):
    host, pf = nic

    assert echo("2", pf / "sriov_numvfs") == ""

    found = host.call(functions)
    vfs = [(pf / f"virtfn{number}").readlink().name for number in range(2)]
    assert [found[vf] for vf in vfs] == [("8086:1889", "iavf")] * 2
    assert all((host.device(vf) / "physfn").readlink().name == pf.name for vf in vfs)
    assert all((host.device(vf) / "iommu_group").is_dir() for vf in vfs)
    assert text(pf / "sriov_numvfs") == "2"

    assert echo("0", pf / "sriov_numvfs") == ""
    assert not host.call(functions).keys() & set(vfs)
    assert not list(pf.glob("virtfn*"))


def test_a_wrong_number_of_virtual_functions_is_refused(nic):
    _host, pf = nic
    numvfs = pf / "sriov_numvfs"

    assert echo("257", numvfs) == "ERANGE"
    assert echo("-1", numvfs) == "EINVAL"
    assert echo("some", numvfs) == "EINVAL"
    assert echo("4", numvfs) == ""
    assert echo("4", numvfs) == ""
    assert echo("5", numvfs) == "EBUSY"
    assert text(numvfs) == "4"


def test_only_the_cards_own_driver_makes_virtual_functions(nic):
    _host, pf = nic
    assert echo(pf.name, pf / "driver/unbind") == ""

    assert echo("1", pf / "sriov_numvfs") == "ENOENT"


def test_events_come_in_the_kernels_order(nic, tmp_path):
    host, pf = nic
    first, second = f"{pf.name[:-4]}01.0", f"{pf.name[:-4]}01.1"

    heard = host.submit(listen, str(tmp_path / "ready"), "remove")
    service.until((tmp_path / "ready").exists)
    echo("2", pf / "sriov_numvfs")
    echo("0", pf / "sriov_numvfs")

    assert heard.result(180) == [
        *((action, first) for action in ("add", "change", "bind")),
        *((action, second) for action in ("add", "change", "bind")),
        ("change", pf.name),
        ("unbind", second),
        ("remove", second),
    ]


def test_nobody_outside_the_host_hears_of_it(nic, simulate_live, tmp_path):
    _host, pf = nic
    other = simulate_live({"cards": ["t4"]})
    heard = other.submit(listen, str(tmp_path / "ready"), "remove")
    service.until((tmp_path / "ready").exists)

    echo("2", pf / "sriov_numvfs")
    other.change("pull", other.card("t4"))

    assert heard.result(180) == [("unbind", other.card("t4")), ("remove", other.card("t4"))]


def test_a_function_goes_to_the_driver_that_is_asked_for(nic):
    host, pf = nic
    vfio = host.path("/sys/bus/pci/drivers/vfio-pci")

    assert echo(pf.name, vfio / "bind") == "ENODEV"
    assert echo("vfio-pci", pf / "driver_override") == ""
    assert echo(pf.name, vfio / "bind") == "EBUSY"
    assert echo(pf.name, vfio / "unbind") == "ENODEV"
    assert echo(pf.name, pf / "driver/unbind") == ""
    assert driver(pf) is None
    assert echo(pf.name, host.path("/sys/bus/pci/drivers_probe")) == ""
    assert driver(pf) == "vfio-pci"
    assert host.call(functions)[pf.name] == ("8086:1592", "vfio-pci")

    echo("", pf / "driver_override")
    assert text(pf / "driver_override") == "(null)"
    echo(pf.name, vfio / "unbind")
    echo(pf.name, host.path("/sys/bus/pci/drivers_probe"))
    assert driver(pf) == "ice"
    assert echo("0000:ff:00.0", host.path("/sys/bus/pci/drivers_probe")) == "ENODEV"


def test_virtual_functions_are_left_alone_where_they_shall_be(nic):
    _host, pf = nic

    assert echo("maybe", pf / "sriov_drivers_autoprobe") == "EINVAL"
    assert echo("0", pf / "sriov_drivers_autoprobe") == ""
    assert echo("1", pf / "sriov_numvfs") == ""

    assert driver(pf / "virtfn0") is None


def test_a_removed_function_is_found_again_by_a_rescan(nic):
    host, pf = nic
    echo("2", pf / "sriov_numvfs")

    assert echo("1", pf / "remove") == ""
    assert set(host.call(functions).values()) == {("8086:2030", "pcieport")}
    assert echo("1", host.path("/sys/bus/pci/rescan")) == ""

    assert host.call(functions)[pf.name] == ("8086:1592", "ice")
    assert text(pf / "sriov_numvfs") == "0"


def test_what_the_kernel_keeps_to_itself_is_refused(nic):
    _host, pf = nic

    assert echo("0x10de", pf / "vendor") == "EACCES"
    assert echo("1", pf / "new") == "EACCES"
    assert echo("1", pf / "nothing/new") == "ENOENT"
    with pytest.raises(PermissionError):
        (pf / "remove").read_text()


def test_every_write_is_on_record(nic):
    host, pf = nic
    echo("1", pf / "sriov_numvfs")
    echo("9999", pf / "sriov_numvfs")

    assert [(path.rpartition("/")[2], value) for path, value in host.writes()] == [
        ("sriov_numvfs", "1"),
        ("sriov_numvfs", "9999"),
    ]


def test_mediated_devices_on_a_card(simulate_live):
    host = simulate_live({"cards": ["t4"]})
    pf = host.device(host.card("t4"))
    types = pf / "mdev_supported_types"
    small, large = types / "nvidia-230", types / "nvidia-234"

    assert echo("no uuid", small / "create") == "EINVAL"
    assert echo(UUID, small / "create") == ""
    assert echo(UUID, small / "create") == "EEXIST"
    assert [text(each / "available_instances") for each in (small, large)] == ["15", "0"]
    assert echo(OTHER, large / "create") == "EUSERS"
    mdev = host.path(f"/sys/bus/mdev/devices/{UUID}")
    assert (mdev / "mdev_type").readlink().name == "nvidia-230"
    assert (pf / UUID / "mdev_type").is_dir()
    assert [path.name for path in (small / "devices").iterdir()] == [UUID]

    assert echo("1", mdev / "remove") == ""
    assert not mdev.exists()
    assert [text(each / "available_instances") for each in (small, large)] == ["16", "1"]
    assert echo(OTHER, large / "create") == ""


def test_mediated_devices_on_virtual_functions(simulate_live):
    host = simulate_live({"cards": [{"card": "a100", "vfs": 3}]})
    pf = host.device(host.card("a100"))
    types = [pf / f"virtfn{number}/mdev_supported_types" for number in range(3)]

    assert echo(UUID, types[0] / "nvidia-474/create") == ""

    assert [text(each / "nvidia-474/available_instances") for each in types] == ["0", "0", "0"]
    echo("1", host.path(f"/sys/bus/mdev/devices/{UUID}/remove"))
    assert echo(UUID, types[1] / "nvidia-468/create") == ""
    assert [text(each / "nvidia-468/available_instances") for each in types] == ["1", "0", "1"]


def test_slices_of_a_card_may_be_of_several_kinds(simulate_live):
    host = simulate_live({"cards": [{"card": "a100-mig", "vfs": 4}]})
    types = host.device(host.card("a100-mig")) / "virtfn0/mdev_supported_types"

    assert echo(UUID, types / "nvidia-477/create") == ""

    others = host.device(host.card("a100-mig")) / "virtfn1/mdev_supported_types"
    assert text(others / "nvidia-477/available_instances") == "1"
    assert text(others / "nvidia-475/available_instances") == "1"


def test_types_of_virtual_functions(simulate_live):
    host = simulate_live({"cards": [{"card": "h100", "vfs": 2}]})
    pf = host.device(host.card("h100"))
    first, second = (pf / f"virtfn{number}/nvidia" for number in range(2))
    assert "1138  : NVIDIA H100XM-80C" in text(first / "creatable_vgpu_types")

    assert echo("4711", first / "current_vgpu_type") == "EINVAL"
    assert echo("1138", first / "current_vgpu_type") == ""
    assert echo("1132", first / "current_vgpu_type") == "EBUSY"
    assert echo("1132", second / "current_vgpu_type") == "EINVAL"
    assert text(second / "creatable_vgpu_types") == ""

    assert echo("0", first / "current_vgpu_type") == ""
    assert echo("1132", second / "current_vgpu_type") == ""
    assert not (pf / "nvidia").exists()


def test_a_command_on_the_host_sees_its_devices_and_our_servers(nic):
    host, pf = nic
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def answer() -> None:
        client, _address = server.accept()
        client.sendall(client.recv(9))
        client.close()

    threading.Thread(target=answer, daemon=True).start()
    host.forward(port)

    connect = f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3; cat <&3"
    done = host.run("bash", "-c", f"ls /sys/bus/pci/devices; {connect}")

    assert done.stdout.split()[-2:] == [pf.name, "hello"]
    server.close()
