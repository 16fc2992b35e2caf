# SPDX-License-Identifier: Apache-2.0
"""Intel's and Xilinx's cards are programmed by their vendors' tools, and sysfs is asked after.

The tools are recorded ones: they note their arguments and change sysfs as the real ones would.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pathlib
import shlex
import shutil
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable

import pytest
from oslo_privsep import capabilities

from cyborg.drivers import base, pci, privileged
from cyborg.drivers.intel import dfl_region
from cyborg.drivers.intel import fpga as intel_fpga
from cyborg.drivers.xilinx import fpga as xilinx_fpga
from cyborg.tests.contract import passes
from cyborg.tests.simulated import preload

TOOL = pathlib.Path(__file__).parents[2] / "data" / "tools" / "tool.sh"

OLD = "d8424dc4a4a3c413f89e433683f9040b"
AFU = "9aeffe5f84570612c000c9660d824272"
REGION = "9926ab6d6c925a68aabca7d84c545738"
XCLBIN = "0f5b1c6e-7f0d-4a57-9a11-3a1d2c4b5e6f"


def gbs(afu: str = AFU, region: str = REGION, *, signed: bool = False) -> bytes:
    """A bitstream for an Intel card."""
    cluster = {"accelerator-type-uuid": str(uuid.UUID(afu)), "total-contexts": 1}
    image = {"interface-uuid": str(uuid.UUID(region)), "accelerator-clusters": [cluster]}
    metadata = json.dumps({"version": 1, "afu-image": image}).encode()
    blocks = struct.pack("<I", 0xB6EAFD19).ljust(1024, b"\0") if signed else b""
    header = b"XeonFPGA\xb7GBSv001" + struct.pack("<I", len(metadata))
    return blocks + header + metadata + b"\xff" * 4096


def xclbin(identity: str = XCLBIN) -> bytes:
    """A bitstream for a Xilinx card."""
    return b"xclbin2\0".ljust(416, b"\0") + uuid.UUID(identity).bytes + b"\xff" * 4096


def settings(state: str, timeout: int = 60) -> str:
    """What stands in the file of an agent that keeps its files in a directory."""
    return f"[DEFAULT]\nstate_path = {state}\n[programming]\ntool_timeout = {timeout}\n"


def handles(address: str) -> tuple[base.AttachHandle, ...]:
    """By what the card at this address is given out on the host that this process sees."""
    functions = pci.scan()
    slot = [each for each in functions if each.rpartition(".")[0] == address.rpartition(".")[0]]
    return tuple(
        base.AttachHandle(attach_type="PCI", attach_info=pci.split(each))
        for each in functions[address].vfs or slot
    )


def show_simulation(tool: pathlib.Path) -> None:
    """Let the tool see the sysfs of this process, whose environment it is not given."""
    names = ("LD_PRELOAD", "UMOCKDEV_DIR")
    simulated = "\n".join(f"{each}={os.environ[each]}" for each in names if each in os.environ)
    tool.with_name("simulated").write_text(simulated)


def attempt(
    name: str,
    tool: str,
    bitstream: str,
    address: str,
    timeout: int = 60,
    function: str | None = None,
    without: str | None = None,
    until: float = math.inf,
) -> str:
    """Program a card on the host that this process sees; what came of it, in words.

    ``function`` is what the image says, ``without`` a function that is not of the deployable, and
    ``until`` when the permit ends.
    """
    show_simulation(pathlib.Path(tool))
    privileged.programming.set_client_mode(False)
    privileged._FPGACONF = privileged._XBMGMT = tool
    privileged._DFL_REGION = [tool]
    privileged._DEV = pathlib.Path(tool).parent
    state = pathlib.Path(bitstream).parent / "state"
    conf = passes.configured(settings(str(state), timeout), [], "host-1")
    drivers: dict[str, Callable[..., base.Programmable]] = {
        "intel": intel_fpga.IntelFpgaDriver,
        "xilinx": xilinx_fpga.XilinxFpgaDriver,
    }
    path = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
    target = base.ProgramTarget(
        deployable="host-1_card",
        control_path=path,
        attach_handles=tuple(
            each for each in handles(address) if pci.join(each.attach_info) != without
        ),
        function=function,
        until=until,
    )
    try:
        done = drivers[name](conf).program(target, pathlib.Path(bitstream))
    except Exception as exc:  # noqa: BLE001 - whatever a driver raises
        return f"{type(exc).__name__}: {exc}"
    return f"{done.function} by {done.verified_by}"


@pytest.fixture
def tool(tmp_path):
    """A vendor's tool that does what is written in the file ``behaviour`` beside it."""
    path = tmp_path / "tool"
    shutil.copy(TOOL, path)
    (tmp_path / "behaviour").write_text("exit 0\n")
    return path


@pytest.fixture
def program(simulate, tool, tmp_path) -> Callable[..., str]:
    """Program the host's card with a file of that content while the tool behaves so."""

    def program(
        simulated,
        name: str,
        card: str,
        data: bytes,
        behaviour: str = "",
        timeout: int = 60,
        *,
        function: str | None = None,
        without: str | None = None,
        until: float = math.inf,
    ) -> str:
        (tmp_path / "behaviour").write_text(behaviour)
        bitstream = tmp_path / "bitstream"
        bitstream.write_bytes(data)
        place = simulated.card(card)
        file = str(bitstream)
        return simulated.call(
            attempt, name, str(tool), file, place, timeout, function, without, until
        )

    return program


def asked(tool: pathlib.Path) -> list[str] | None:
    """What the tool was last asked, if it was."""
    try:
        return (tool.parent / "arguments").read_text().splitlines()
    except FileNotFoundError:
        return None


def shows(path: str, text: str) -> str:
    """The behaviour of a tool after which sysfs shows this."""
    return f"echo {text} > /sys/bus/pci/devices/{path}\n"


def port_of(simulated, card: str) -> str:
    """Where a card of the older driver shows its function."""
    address = simulated.card(card)
    place = simulated.root / "sys/bus/pci/devices" / address
    (found,) = place.glob("fpga/*/intel-fpga-port.*/afu_id")
    return f"{address}/{found.relative_to(place)}"


@pytest.fixture
def intel(simulate):
    return simulate({"cards": ["pac-a10"]})


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


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "no bitstream for an Intel FPGA"),
        (xclbin(), "no bitstream for an Intel FPGA"),
        (gbs()[:60], "header cannot be read"),
        (b"XeonFPGA\xb7GBSv001" + struct.pack("<I", 2) + b"[]", "header cannot be read"),
        (gbs(region=AFU), f"is for region {AFU}, not {REGION}"),
    ],
)
def test_what_is_not_for_an_intel_card_never_reaches_the_tool(
    intel, program, tool, data, sentence
):
    done = program(intel, "intel", "pac-a10", data)

    assert done.startswith("NothingWritten")
    assert sentence in done
    assert asked(tool) is None


def test_a_function_that_does_not_show_is_not_loaded(intel, program):
    done = program(intel, "intel", "pac-a10", gbs())

    card = intel.card("pac-a10")
    assert done == f"RuntimeError: FPGA {card} shows {OLD} as loaded, not {AFU}"


def test_a_tool_that_fails_has_the_last_word(intel, program):
    done = program(intel, "intel", "pac-a10", gbs(), "echo 'Error: no slot' >&2; exit 4")

    assert done.startswith("OSError: [Errno 5]")
    assert done.endswith("ended with 4: Error: no slot")


def test_a_tool_is_given_nothing_of_the_agents_environment(intel, program, tmp_path):
    behaviour = f"umask > {tmp_path}/umask; env | sed 's/=.*//' > {tmp_path}/names; exit 4"

    program(intel, "intel", "pac-a10", gbs(), behaviour)

    assert (tmp_path / "umask").read_text() == "0077\n"
    given = {"HOME", "LC_ALL", "PATH"}
    of_shell_and_simulation = {"PWD", "_", "SHLVL", "OLDPWD", "LD_PRELOAD", "UMOCKDEV_DIR"}
    assert given <= set((tmp_path / "names").read_text().split()) <= given | of_shell_and_simulation


TALK = """
import re, sys
from cyborg.drivers import permits, tool_process
try:
    until = permits.clock() + 120
    tool_process.run(["/bin/sh", "-c", sys.argv[2]], 120, sys.argv[1], until)
except OSError as exc:
    print(exc)
# Not ru_maxrss, which begins with that of the process that started this one.
print(re.search("VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def test_of_a_tool_that_talks_without_end_little_is_kept(tmp_path):
    (tmp_path / "lock").touch()
    tool = "head -c 400000000 /dev/zero | tr '\\0' x; echo ' the end'; exit 4"

    command = [sys.executable, "-c", TALK, str(tmp_path / "lock"), tool]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True)

    sentence, kibibytes = done.stdout.splitlines()
    assert sentence.endswith("xxx the end")
    assert int(kibibytes) < 200_000


def test_a_tool_that_hangs_is_ended(intel, program):
    done = program(intel, "intel", "pac-a10", gbs(), "echo erasing; exec sleep 600", timeout=5)

    assert done.startswith("TimeoutError")
    assert "did not end within 5 s: erasing" in done


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


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (gbs(), f"is for region {REGION}, not {SECOND_REGION}"),
        (gbs(region=SECOND_REGION, signed=True), "which only fpgaconf can write"),
    ],
)
def test_what_is_not_for_a_region_never_reaches_it(regions, program, tool, data, sentence):
    done = program(regions, "intel", "d5005", data, without=first_vf(regions))

    assert done.startswith("NothingWritten")
    assert sentence in done
    assert asked(tool) is None


def test_without_the_cards_device_file_a_region_is_what_it_was(regions, program, tool, tmp_path):
    (node,) = tmp_path.glob("dfl-fme.*")
    node.unlink()

    done = program(regions, "intel", "d5005", gbs(region=SECOND_REGION), without=first_vf(regions))

    assert done.startswith("NothingWritten")
    assert asked(tool) is None


def test_a_region_that_does_not_show_what_was_written_is_not_loaded(regions, program):
    done = program(regions, "intel", "d5005", gbs(region=SECOND_REGION), without=first_vf(regions))

    assert done.startswith("RuntimeError")


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


def test_what_the_kernel_refuses_is_said(tmp_path):
    node, bitstream = tmp_path / "dfl-fme.0", tmp_path / "bitstream"
    node.touch()
    bitstream.write_bytes(gbs())

    said = dfl_region.main([str(node), "1", str(bitstream)])

    assert said is not None
    assert "Inappropriate ioctl" in said


def reports(simulated, driver: str) -> list[tuple[str | None, str | None]]:
    (only,) = simulated.call(passes.run, [driver])
    (device,) = only.devices[driver]
    return [(each.program_mode, each.function) for each in device.deployables]


@pytest.mark.parametrize("nothing", ["f" * 32, "0" * 32])
def test_a_region_that_is_empty_says_so(intel, nothing):
    path = intel.root / "sys/bus/pci/devices" / port_of(intel, "pac-a10")
    path.write_text(f"{nothing}\n")

    assert reports(intel, "intel_fpga_driver") == [("dynamic", "")]


@pytest.fixture
def xilinx(simulate):
    return simulate({"cards": ["u250"]})


def user_of(simulated) -> str:
    return simulated.card("u250")[:-1] + "1"


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


def test_where_sysfs_shows_nothing_the_tool_is_believed(xilinx, program):
    assert reports(xilinx, "xilinx_fpga_driver") == [("dynamic", None)]

    done = program(xilinx, "xilinx", "u250", xclbin())

    assert done == f"{XCLBIN} by exit status of xbmgmt"


def test_another_program_than_was_written_is_a_failure(xilinx, program):
    path = f"{user_of(xilinx)}/xclbinuuid"
    (xilinx.root / "sys/bus/pci/devices" / path).write_text("")

    done = program(xilinx, "xilinx", "u250", xclbin(), shows(path, str(uuid.UUID(AFU))))

    assert done.startswith("RuntimeError: FPGA")


@pytest.mark.parametrize("data", [b"", gbs(), xclbin()[:431]])
def test_what_is_not_for_a_xilinx_card_never_reaches_the_tool(xilinx, program, tool, data):
    done = program(xilinx, "xilinx", "u250", data)

    assert done == "NothingWritten: This is no bitstream for a Xilinx FPGA (xclbin)"
    assert asked(tool) is None


@pytest.mark.parametrize("place", ["--help", "relative/path", "/nowhere", "/tmp"])
def test_no_path_is_taken_for_an_option(place):
    privileged.programming.set_client_mode(False)

    for tool in (privileged.fpgaconf, privileged.xbmgmt):
        with pytest.raises(OSError, match="is no file by its full path"):
            tool("0000:3b:00.0", place, 1, __file__, math.inf, {})
        with pytest.raises(OSError, match="is no file by its full path"):
            tool("0000:3b:00.0", __file__, 1, place, math.inf, {})
        with pytest.raises(ValueError, match="cannot be part of a path"):
            tool("0000:3b:00.0; reboot", place, 1, __file__, math.inf, {})


HELPER = (
    "from cyborg.drivers import privileged; privileged._FPGACONF = '{tool}'; "
    "from oslo_privsep import daemon; daemon.helper_main()"
)
HELPED = """
import sys
from oslo_config import cfg
from cyborg.drivers import privileged
cfg.CONF(["--config-file", sys.argv[1]], project="cyborg")
privileged.act_alone()
assert privileged.programming.client_mode
for timeout in (60, 1):
    try:
        privileged.fpgaconf("0000:3b:00.0", sys.argv[1], timeout, sys.argv[1], float("inf"), {})
    except OSError as exc:
        print(type(exc).__name__, exc)
    else:
        print("done")
"""


def test_a_helper_that_is_root_runs_the_tool(tool, tmp_path):
    if os.geteuid() != 0:
        preload.missing("this test needs root")
    config = tmp_path / "cyborg.conf"
    helper = shlex.join([sys.executable, "-c", HELPER.format(tool=tool)])
    command = f"{helper} --config-file {config}".replace("$", "$$")
    config.write_text(f"[cyborg_program]\nhelper_command = {command}\n")
    (tmp_path / "behaviour").write_text(
        f"""[ -e {tmp_path}/again ] && exec sleep 600
        touch {tmp_path}/again
        id -u > {tmp_path}/who
        grep ^Cap[A-Z] /proc/self/status > {tmp_path}/capabilities
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", HELPED, str(config)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "done"
    assert second.startswith("TimeoutError")
    assert (tmp_path / "who").read_text() == "0\n"
    # A tool that root starts would have all of the kernel's.
    found = dict(line.split() for line in (tmp_path / "capabilities").open())
    only = f"{1 << capabilities.CAP_DAC_OVERRIDE:016x}"
    none = f"{0:016x}"
    expected = {"CapInh": none, "CapPrm": only, "CapEff": only, "CapBnd": only, "CapAmb": none}
    assert {key.rstrip(":"): value for key, value in found.items()} == expected
