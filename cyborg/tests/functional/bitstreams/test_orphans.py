# SPDX-License-Identifier: Apache-2.0
"""A vendor's tool that outlives its agent: the next agent leaves the card alone until it ends."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest

from cyborg import rpc
from cyborg.agent import host_steps, pass_counter
from cyborg.drivers import pci, privileged, registry, tool_process
from cyborg.tests import full_payloads
from cyborg.tests.contract import passes
from cyborg.tests.heard_reports import Conductor
from cyborg.tests.service import until
from cyborg.tests.vendor_tools import (
    AFU,
    OLD,
    XCLBIN,
    gbs,
    handles,
    port_of,
    settings,
    show_simulation,
    user_of,
    xclbin,
)

pytestmark = pytest.mark.slow

PATIENCE = 60


def ask(driver: str, state: str, address: str, tool_timeout: str = "60") -> str:
    """Have a new agent, whose files are there, program a card; its answer in words."""
    show_simulation(pathlib.Path(state, "tool"))
    privileged.programming.set_client_mode(False)
    privileged._FPGACONF = privileged._XBMGMT = str(pathlib.Path(state, "tool"))
    conf = passes.configured(settings(state, int(tool_timeout)), [driver], "host-1")
    rpc.use_memory(conf)
    conductor = rpc.conductor_server(conf, Conductor())
    conductor.start()
    assert conductor._started.wait(PATIENCE)
    (bitstream,) = pathlib.Path(state, "bitstreams").iterdir()
    agent = host_steps.StepEndpoint(
        conf, registry.load(conf).drivers, 5, pass_counter.PassCounter(lambda: None)
    )
    step = dataclasses.replace(
        full_payloads.program_step(),
        driver=driver,
        deployable="host-1_card",
        deployable_uuid=str(uuid.UUID(int=1)),
        cpid_type="PCI",
        cpid_info=pci.split(address),
        attach_handles=handles(address),
        image_uuid=bitstream.name.partition(".")[0],
        size=bitstream.stat().st_size,
        hash_algo="sha512",
        hash_value=hashlib.sha512(bitstream.read_bytes()).hexdigest(),
        function_id=None,
        signature={},
        operation_uuid=str(uuid.uuid4()),
        write=1,
        asked_ms=1000,
        agent_started=5,
    )
    try:
        answer = agent.program({}, step.to_wire(), PATIENCE)
    except (rpc.HostStepRunning, rpc.ProgramFailed) as exc:
        return f"{type(exc).__name__}: {exc}"
    return f"{answer.function} by {answer.verified_by}"


class Orphan:
    """A card whose agent was killed while its tool writes."""

    def __init__(self, simulated, driver: str, card: str, shown: str) -> None:
        self.simulated = simulated
        self.driver = driver
        self.address = simulated.card(card)
        self.shown = simulated.root / "sys/bus/pci/devices" / shown
        self._place = shown

    def begin(self, folder: pathlib.Path, data: bytes, loads: str, tool_timeout: int) -> None:
        """Have an agent write the card, and kill it when the tool runs."""
        kept = folder / "bitstreams"
        kept.mkdir()
        (kept / f"{uuid.UUID(int=2)}.sha512.{hashlib.sha512(data).hexdigest()[:32]}").write_bytes(
            data
        )
        self.hold, begun = folder / "hold", folder / "arguments"
        self.hold.touch()
        (folder / "behaviour").write_text(
            f"while [ -e {self.hold} ]; do sleep 0.1; done\n"
            f"echo {loads} > /sys/bus/pci/devices/{self._place}\n"
        )
        self._state = str(folder)
        self.lock = folder / "cards" / f"{self.address}.lock"
        code = f"from {__name__} import ask; import sys; ask(*sys.argv[1:])"
        agent = subprocess.Popen(
            [sys.executable, "-c", code, self.driver, self._state, self.address, f"{tool_timeout}"],
            env={
                **os.environ,
                "LD_PRELOAD": "libumockdev-preload.so.0",
                "UMOCKDEV_DIR": str(self.simulated.root),
            },
        )
        until(lambda: begun.exists() or agent.poll() is not None)
        assert agent.poll() is None
        agent.kill()
        agent.wait(PATIENCE)
        begun.unlink()
        self.asked = begun

    def ask(self) -> str:
        """What the next agent answers."""
        return str(self.simulated.call(ask, self.driver, self._state, self.address))

    def reports(self) -> list[tuple[str | None, str | None]]:
        """What the next agent reports of the card's program."""
        (only,) = self.simulated.call(passes.run, [self.driver], settings(self._state))
        assert only.errors == {}
        (device,) = only.devices[self.driver]
        assert device.unhealthy is None
        assert device.being_written == self.hold.exists()
        return [(each.program_mode, each.function) for each in device.deployables]


@pytest.fixture
def orphan(simulate, tool, tmp_path) -> Iterator[Callable[[str], Orphan]]:
    made: list[Orphan] = []

    def make(vendor: str, tool_timeout: int = 60) -> Orphan:
        simulated = simulate({"cards": ["pac-a10", "u250"]})
        if vendor == "intel":
            card, place, data, loads = "pac-a10", port_of(simulated, "pac-a10"), gbs(), AFU
        else:
            place = f"{user_of(simulated)}/xclbinuuid"
            (simulated.root / "sys/bus/pci/devices" / place).write_text(f"{OLD}\n")
            card, data, loads = "u250", xclbin(), XCLBIN
        made.append(Orphan(simulated, f"{vendor}_fpga_driver", card, place))
        made[-1].begin(tmp_path, data, loads, tool_timeout)
        return made[-1]

    yield make
    for each in made:
        each.hold.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("vendor", "end"),
    [("intel", f"{AFU} by afu_id in sysfs"), ("xilinx", f"{XCLBIN} by xclbinuuid in sysfs")],
)
def test_the_next_agent_leaves_a_card_alone_that_is_still_written(orphan, vendor, end):
    card = orphan(vendor)

    refused = card.ask()

    assert refused.startswith("HostStepRunning: A tool that was started before writes card")
    assert not card.asked.exists()
    # What it shows may be half of something.
    assert card.reports() == [("dynamic", None)]
    if vendor == "intel":
        card.shown.unlink()
        assert card.reports() == [("dynamic", None)]
        assert card.ask() == refused

    card.hold.unlink()

    until(lambda: not tool_process.is_locked(card.lock))
    assert card.ask() == end
    assert card.asked.exists()
    assert card.reports() == [("dynamic", end.partition(" ")[0])]


def test_a_tool_that_hangs_without_its_agent_is_killed(orphan):
    """The next agent writes the card then; nobody has let the tool go on."""
    card = orphan("intel", tool_timeout=1)

    until(lambda: not tool_process.is_locked(card.lock))

    assert card.hold.exists()
    card.hold.unlink()
    assert card.reports() != []
    assert " by " in card.ask()
