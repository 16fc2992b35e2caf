# SPDX-License-Identifier: Apache-2.0
"""Intel's and Xilinx's cards are programmed by their vendors' tools, and sysfs is asked after.

The tools are recorded ones: they note their arguments and change sysfs as the real ones would.
"""

from __future__ import annotations

import ctypes
import math
import struct
import subprocess
import sys
import uuid

import pytest

from cyborg.drivers import privileged
from cyborg.drivers.intel import dfl_region
from cyborg.tests.contract import passes
from cyborg.tests.vendor_tools import (
    AFU,
    OLD,
    REGION,
    XCLBIN,
    asked,
    gbs,
    port_of,
    shows,
    user_of,
    xclbin,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("signed", [False, True])
def test_an_intel_card_is_programmed_by_fpgaconf(intel, program, tool, tmp_path, signed):
    port = port_of(intel, "pac-a10")

    done = program(intel, "intel", "pac-a10", gbs(signed=signed), shows(port, AFU))

    assert done == f"{AFU} by afu_id in sysfs"
    domain, bus, rest = intel.card("pac-a10").split(":")
    device, function = rest.split(".")
    place = ["--segment", domain, "--bus", bus, "--device", device, "--function", function]
    place[1::2] = [f"0x{number}" for number in place[1::2]]
    assert asked(tool) == [*place, str(tmp_path / "bitstream")]


def test_what_is_not_for_a_card_never_reaches_the_tool(simulate, program, tool):
    simulated = simulate({"cards": ["pac-a10", "u250"]})
    for data, sentence in (
        (b"", "not a bitstream for an Intel FPGA"),
        (xclbin(), "not a bitstream for an Intel FPGA"),
        (gbs()[:60], "header cannot be read"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2) + b"[]", "header cannot be read"),
        (gbs(region=AFU), f"is for region {AFU}, not {REGION}"),
    ):
        done = program(simulated, "intel", "pac-a10", data)

        assert done.startswith("NothingWritten")
        assert sentence in done
    for data in (b"", gbs(), xclbin()[:431]):
        done = program(simulated, "xilinx", "u250", data)

        assert done == "NothingWritten: This is not a bitstream for a Xilinx FPGA (xclbin)"
    assert asked(tool) is None


@pytest.mark.parametrize(
    ("behaviour", "timeout", "begins", "ends"),
    [
        ("", 60, "RuntimeError: FPGA {card} shows ", f"shows {OLD} as loaded, not {AFU}"),
        ("echo 'Error: no slot' >&2; exit 4", 60, "OSError: [Errno 5]", "with 4: Error: no slot"),
        ("echo erasing; exec sleep 600", 5, "TimeoutError", "did not end within 5 s: erasing"),
    ],
    ids=["shows another", "fails", "hangs"],
)
def test_a_tool_that_does_not_do_its_work_is_a_failure(
    intel, program, behaviour, timeout, begins, ends
):
    done = program(intel, "intel", "pac-a10", gbs(), behaviour, timeout)

    assert done.startswith(begins.format(card=intel.card("pac-a10")))
    assert ends in done


def test_a_tool_is_given_nothing_of_the_agents_environment(intel, program, tmp_path):
    behaviour = f"umask > {tmp_path}/umask; env | sed 's/=.*//' > {tmp_path}/names; exit 4"

    program(intel, "intel", "pac-a10", gbs(), behaviour)

    assert (tmp_path / "umask").read_text() == "0077\n"
    given = {"HOME", "LC_ALL", "PATH"}
    of_shell_and_simulation = {"PWD", "_", "SHLVL", "OLDPWD", "LD_PRELOAD", "UMOCKDEV_DIR"}
    assert given <= set((tmp_path / "names").read_text().split()) <= given | of_shell_and_simulation


TALK = """
import re, sys
from cyborg.drivers import permit_clock, tool_process
try:
    until = permit_clock.clock() + 120
    tool_process.run(["/bin/sh", "-c", sys.argv[2]], 120, sys.argv[1], until)
except OSError as exc:
    print(exc)
# Not ru_maxrss, which begins with that of the process that started this one.
print(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def test_of_a_tool_that_talks_without_end_little_is_kept(tmp_path):
    (tmp_path / "lock").touch()
    tool = "head -c 250000000 /dev/zero | tr '\\0' x; echo ' the end'; exit 4"

    command = [sys.executable, "-c", TALK, str(tmp_path / "lock"), tool]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)

    sentence, kibibytes = done.stdout.splitlines()
    assert sentence.endswith("xxx the end")
    assert int(kibibytes) < 200_000


def test_without_its_tool_a_card_is_what_it_was(intel, program, tool):
    tool.unlink()

    done = program(intel, "intel", "pac-a10", gbs())

    assert done.startswith("NothingWritten")
    assert done.endswith("is not installed")


def test_a_card_with_two_regions_is_not_programmed(simulate, program, tool):
    simulated = simulate({"cards": ["d5005"]})

    done = program(simulated, "intel", "d5005", gbs())

    assert "shows no region that can be programmed" in done
    assert asked(tool) is None


SECOND_REGION = "bfac4d851ee856fe8c95865ce1bbaa2d"


@pytest.fixture
def regions(simulate, tmp_path):
    """A host with a card of two regions, each with a virtual function."""
    simulated = simulate({"cards": [{"card": "d5005", "vfs": 2, "sriov": {"total": 2}}]})
    card = simulated.root / "sys/bus/pci/devices" / simulated.card("d5005")
    (fme,) = card.glob("fpga_region/*/dfl-fme.*")
    (tmp_path / fme.name).touch()
    return simulated


def second_port(simulated) -> str:
    """Where the second region shows its function."""
    place = simulated.root / "sys/bus/pci/devices"
    ports = (place / simulated.card("d5005")).glob("fpga_region/*/dfl-port.*")
    (port,) = [each for each in ports if (each / "id").read_text() == "1\n"]
    return f"{port.relative_to(place)}/afu_id"


def first_vf(simulated) -> str:
    """The function of the first region, of which the second one's deployable is without."""
    return simulated.vfs(simulated.card("d5005"))[0]


def test_one_of_two_regions_is_programmed_by_the_kernel(regions, program, tool, tmp_path):
    data, port = gbs(region=SECOND_REGION), second_port(regions)
    first = first_vf(regions)

    done = program(regions, "intel", "d5005", data, shows(port, AFU), without=first)

    assert done == f"{AFU} by afu_id in sysfs"
    (node,) = tmp_path.glob("dfl-fme.*")
    assert asked(tool) == [str(node), "1", str(tmp_path / "bitstream")]
    card, *both = reports(regions, "intel_fpga_driver")
    assert card == (None, None)
    assert both == [("dynamic", AFU)] * 2
    # One that does not show what was written is not loaded.
    (regions.root / "sys/bus/pci/devices" / port).write_text(f"{OLD}\n")
    assert program(regions, "intel", "d5005", data, without=first).startswith("RuntimeError")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (gbs(), f"is for region {REGION}, not {SECOND_REGION}"),
        (gbs(region=SECOND_REGION, signed=True), "which only fpgaconf can write"),
        (gbs(region=SECOND_REGION), "dfl-fme"),
    ],
)
def test_what_is_not_for_a_region_never_reaches_it(
    regions, program, tool, tmp_path, data, sentence
):
    if sentence == "dfl-fme":
        # The card's device file is not there.
        next(tmp_path.glob("dfl-fme.*")).unlink()

    done = program(regions, "intel", "d5005", data, without=first_vf(regions))

    assert done.startswith("NothingWritten")
    assert sentence in done
    assert asked(tool) is None


def test_the_kernel_is_given_the_port_and_the_bits_alone(tmp_path, monkeypatch):
    seen = []

    def ioctl(file, number, request):
        size, flags, port, length, address = struct.unpack("=IIIIQ", request)
        seen.append((str(file.name), number, size, flags, port, ctypes.string_at(address, length)))

    monkeypatch.setattr("fcntl.ioctl", ioctl)
    node, bitstream = tmp_path / "dfl-fme.0", tmp_path / "bitstream"
    node.touch()
    bitstream.write_bytes(gbs())

    assert dfl_region.main([str(node), "1", str(bitstream)]) is None
    assert seen == [(str(node), 0xB680, 24, 0, 1, b"\xff" * 4096)]

    # What the kernel refuses is said.
    monkeypatch.undo()
    said = dfl_region.main([str(node), "1", str(bitstream)])

    assert said is not None
    assert "Inappropriate ioctl" in said


def reports(simulated, driver: str) -> list[tuple[str | None, str | None]]:
    (only,) = simulated.call(passes.run, [driver])
    (device,) = only.devices[driver]
    return [(each.program_mode, each.function) for each in device.deployables]


def test_a_region_that_is_empty_says_so(intel):
    path = intel.root / "sys/bus/pci/devices" / port_of(intel, "pac-a10")
    for nothing in ("f" * 32, "0" * 32):
        path.write_text(f"{nothing}\n")

        assert reports(intel, "intel_fpga_driver") == [("dynamic", "")]


def test_a_xilinx_card_is_programmed_by_xbmgmt(xilinx, program, tool, tmp_path):
    path = f"{user_of(xilinx)}/xclbinuuid"
    (xilinx.root / "sys/bus/pci/devices" / path).write_text(f"{uuid.UUID(int=0)}\n")
    assert reports(xilinx, "xilinx_fpga_driver") == [("dynamic", "")]

    done = program(xilinx, "xilinx", "u250", xclbin(), shows(path, XCLBIN))

    assert done == f"{XCLBIN} by xclbinuuid in sysfs"
    file = str(tmp_path / "bitstream")
    place = xilinx.card("u250")
    assert asked(tool) == ["--force", "program", "--device", place, "--user", file]
    assert reports(xilinx, "xilinx_fpga_driver") == [("dynamic", XCLBIN)]


def test_where_sysfs_shows_nothing_the_tool_is_believed_but_not_against_it(xilinx, program):
    assert reports(xilinx, "xilinx_fpga_driver") == [("dynamic", None)]
    assert program(xilinx, "xilinx", "u250", xclbin()) == f"{XCLBIN} by exit status of xbmgmt"

    path = f"{user_of(xilinx)}/xclbinuuid"
    (xilinx.root / "sys/bus/pci/devices" / path).write_text("")
    done = program(xilinx, "xilinx", "u250", xclbin(), shows(path, str(uuid.UUID(AFU))))

    assert done.startswith("RuntimeError: FPGA")


@pytest.mark.parametrize("place", ["--help", "relative/path", "/nowhere", "/tmp"])
def test_no_path_is_taken_for_an_option(place):
    privileged.programming.set_client_mode(False)

    for tool in (privileged.fpgaconf, privileged.xbmgmt):
        with pytest.raises(OSError, match="is not the full path of a file"):
            tool("0000:3b:00.0", place, 1, __file__, math.inf, {})
        with pytest.raises(OSError, match="is not the full path of a file"):
            tool("0000:3b:00.0", __file__, 1, place, math.inf, {})
        with pytest.raises(ValueError, match="cannot be part of a path"):
            tool("0000:3b:00.0; reboot", place, 1, __file__, math.inf, {})


