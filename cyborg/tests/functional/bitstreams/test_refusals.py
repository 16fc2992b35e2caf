# SPDX-License-Identifier: Apache-2.0
"""What keeps an Intel or Xilinx card from being programmed, and who may write it still.

The tools are recorded ones, as in test_tools.
"""

from __future__ import annotations

import pathlib
import time

import pytest

from cyborg.drivers import tool_process
from cyborg.tests.vendor_tools import AFU, XCLBIN, asked, gbs, port_of, shows, xclbin


def lock_of(folder: pathlib.Path, address: str) -> pathlib.Path:
    """The file that is locked while a tool writes the card."""
    return folder / "state/cards" / f"{address}.lock"


def test_with_a_tool_that_is_a_script_all_ends_that_it_has_started(intel, program, tmp_path):
    hold = tmp_path / "hold"
    hold.touch()
    port = port_of(intel, "pac-a10")
    child = f"while [ -e {hold} ]; do sleep 0.1; done; {shows(port, AFU)}"

    done = program(intel, "intel", "pac-a10", gbs(), f"({child}) & wait", timeout=5)

    is_held = tool_process.is_locked(lock_of(tmp_path, intel.card("pac-a10")))
    hold.unlink()
    assert done.startswith("TimeoutError")
    assert not is_held


@pytest.mark.parametrize("ending", ["exit 0", "exit 4"])
def test_what_a_tool_leaves_behind_still_writes_the_card(intel, program, tmp_path, ending):
    hold = tmp_path / "hold"
    hold.touch()
    port = port_of(intel, "pac-a10")
    child = f"while [ -e {hold} ]; do sleep 0.1; done; {shows(port, AFU)}"
    try:
        done = program(
            intel, "intel", "pac-a10", gbs(), f"({child}) >/dev/null 2>&1 &\n{ending}\n"
        )
        assert done.startswith("BeingWritten: A tool that was started before writes card")
        assert ("ended with 4" in done) == (ending == "exit 4")
    finally:
        hold.unlink()

    lock, deadline = lock_of(tmp_path, intel.card("pac-a10")), time.monotonic() + 60
    while tool_process.is_locked(lock):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert program(intel, "intel", "pac-a10", gbs()) == f"{AFU} by afu_id in sysfs"


def test_a_card_is_not_programmed_under_those_who_have_another_part(simulate, program, tool):
    simulated = simulate({"cards": [{"card": "pac-a10", "vfs": 3, "sriov": {"total": 3}}]})
    other = simulated.vfs(simulated.card("pac-a10"))[1]

    done = program(simulated, "intel", "pac-a10", gbs(), without=other)

    assert done.startswith(f"NothingWritten: PCI function {other} is not of this deployable")
    assert asked(tool) is None
    port = port_of(simulated, "pac-a10")
    all_of_it = program(simulated, "intel", "pac-a10", gbs(), shows(port, AFU))
    assert all_of_it == f"{AFU} by afu_id in sysfs"


@pytest.mark.parametrize(
    ("vendor", "card", "data"), [("intel", "pac-a10", gbs()), ("xilinx", "u250", xclbin())]
)
def test_after_the_term_of_its_permit_no_tool_is_started(
    simulate, program, tool, vendor, card, data
):
    done = program(simulate({"cards": [card]}), vendor, card, data, until=0.0)

    assert done == f"NotPermitted: [Errno 62] The permit ended before {tool} was started"
    assert asked(tool) is None


@pytest.mark.parametrize("number", ["0", "1"])
def test_a_xilinx_card_is_not_programmed_without_one_of_its_functions(
    xilinx, program, tool, number
):
    other = f"{xilinx.card('u250')[:-1]}{number}"

    done = program(xilinx, "xilinx", "u250", xclbin(), without=other)

    assert done.startswith(f"NothingWritten: PCI function {other} is not of this deployable")
    assert asked(tool) is None


def test_an_image_that_says_another_function_than_its_data_is_never_written(
    simulate, program, tool
):
    simulated = simulate({"cards": ["pac-a10", "u250"]})
    for name, card, data, shown in (
        ("intel", "pac-a10", gbs(), AFU),
        ("xilinx", "u250", xclbin(), XCLBIN),
    ):
        done = program(simulated, name, card, data, function="aes-128")

        assert done == (
            f"NothingWritten: The bitstream is of function {shown}, and its image says aes-128"
        )
    assert asked(tool) is None
    written = XCLBIN.replace("-", "").upper()
    done = program(simulated, "xilinx", "u250", xclbin(), function=written)
    assert done == f"{XCLBIN} by exit status of xbmgmt"
