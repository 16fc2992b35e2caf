# SPDX-License-Identifier: Apache-2.0
"""What keeps an Intel or Xilinx card from being programmed, and who may write it still.

The tools are recorded ones, as in test_tools.
"""

from __future__ import annotations

import pathlib

import pytest

from cyborg.drivers import tool_process
from cyborg.tests.service import until
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

    lock = lock_of(tmp_path, intel.card("pac-a10"))
    until(lambda: not tool_process.is_locked(lock))
    assert program(intel, "intel", "pac-a10", gbs()) == f"{AFU} by afu_id in sysfs"


@pytest.mark.parametrize(
    ("vendor", "card", "data"), [("intel", "pac-a10", gbs()), ("xilinx", "u250", xclbin())]
)
def test_no_tool_is_started_after_the_term_of_its_permit_or_for_a_part_of_a_card(
    simulate, program, tool, vendor, card, data
):
    divided = {"vfs": 3, "sriov": {"total": 3}} if vendor == "intel" else {}
    simulated = simulate({"cards": [{"card": card, **divided}]})

    done = program(simulated, vendor, card, data, until=0.0)

    assert done == f"NotPermitted: [Errno 62] The permit ended before {tool} was started"
    address = simulated.card(card)
    parts = simulated.vfs(address)[1:2] or [f"{address[:-1]}{number}" for number in "01"]
    for other in parts:
        done = program(simulated, vendor, card, data, without=other)
        assert done.startswith(f"NothingWritten: PCI function {other} is not of this deployable")
    assert asked(tool) is None
    if vendor == "intel":
        behaviour = shows(port_of(simulated, card), AFU)
        all_of_it = program(simulated, vendor, card, data, behaviour)
        assert all_of_it == f"{AFU} by afu_id in sysfs"


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
