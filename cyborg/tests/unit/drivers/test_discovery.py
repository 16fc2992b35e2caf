# SPDX-License-Identifier: Apache-2.0
"""One bad driver never hinders the others, and no driver takes what another owns."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cyborg.agent import discovery
from cyborg.drivers import base, pci
from cyborg.tests.discovered import PATIENCE, until


def device(path: str, *names: str) -> base.Device:
    return base.Device(
        type="PCI",
        vendor="10de",
        model="20f1",
        control_path=base.ControlPath(cpid_type="PCI", cpid_info={"bus": path}),
        deployables=tuple(
            base.Deployable(
                name=name, resource_class="CUSTOM_PCI", num_accelerators=1, attach_handles=()
            )
            for name in names
        ),
    )


class Driver:
    """Finds ``devices``; raises ``fault``; waits for ``gate``; keeps the hosts it was shown."""

    def __init__(self, *devices: object) -> None:
        self.devices = devices
        self.fault: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.hosts: list[base.Host] = []

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        self.hosts.append(host)
        self.gate.wait(PATIENCE)
        yield from self.devices  # type: ignore[misc]
        if self.fault is not None:
            raise self.fault


class PciReader:
    """Keeps the walk that it was shown."""

    def __init__(self) -> None:
        self.walks: list[object] = []

    def discover(self, host: base.Host) -> list[base.Device]:
        self.walks.append(host.pci)
        return []


def passes(timeout: float = PATIENCE, **drivers: base.Driver) -> discovery.Discovery:
    return discovery.Discovery("host-1", drivers, timeout=timeout)


GPU, NIC, NIC2 = device("01", "gpu"), device("02", "nic"), device("03", "nic2")


def failing(fault: BaseException) -> Driver:
    driver = Driver(GPU)
    driver.fault = fault
    return driver


def endless() -> Driver:
    driver = Driver()
    driver.devices = itertools.repeat(GPU)  # type: ignore[assignment]
    return driver


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (failing(OSError("the bus is on fire")), "OSError: the bus is on fire"),
        (failing(SystemExit()), "The driver ended without an answer"),
        (Driver("gpu"), "discover() returned a str, not a Device"),
        (Driver(GPU, device("01", "other")), "It reports PCI 01 twice"),
        (Driver(GPU, device("03", "gpu")), "It reports deployable gpu twice"),
        (endless(), "more than 10000 devices"),
    ],
    ids=["fails", "ends its thread", "no device", "a path twice", "a name twice", "without end"],
)
def test_a_driver_that_fails_is_named_and_reports_nothing(bad, fault):
    found = passes(bad=bad, good=Driver(NIC)).run()

    assert found.devices == {"good": (NIC,)}
    assert fault in found.errors["bad"]


def test_a_driver_that_hangs_is_left_alone_until_it_returns():
    slow = Driver(GPU)
    slow.gate.clear()
    agent = passes(slow=slow, good=Driver(NIC), timeout=0.1)

    first, second = (until(agent, lambda found: bool(found.devices)) for _ in range(2))

    assert first == second
    assert first.devices == {"good": (NIC,)}
    assert first.errors == {"slow": "Discovery does not end within 0.1 seconds"}
    assert len(slow.hosts) == 1

    slow.gate.set()
    found = until(agent, lambda found: not found.errors)
    assert found.devices == {"slow": (GPU,), "good": (NIC,)}


class Claimer(Driver):
    """A driver that may hang while it says what it means, or while it judges its devices."""

    def __init__(self, *devices: object) -> None:
        super().__init__(*devices)
        self.thinking = threading.Event()
        self.judging = threading.Event()
        self.thinking.set()
        self.judging.set()

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        assert host.foreign == frozenset()
        return super().discover(host)

    def exactness(self, functions: pci.Snapshot) -> dict[str, int]:
        self.thinking.wait(PATIENCE)
        return {}

    def health(self, device: base.Device, host: base.Host) -> None:
        self.judging.wait(PATIENCE)


class Complainer(Driver):
    def problems(self) -> list[object]:
        return ["it has no driver", RuntimeError("it is too old"), 7]


def test_what_a_driver_complains_of_is_told_beside_what_it_found():
    """It may be no sentence, and hinders no other driver."""
    found = passes(complainer=Complainer(GPU), good=Driver(NIC)).run()

    assert found.devices == {"complainer": (GPU,), "good": (NIC,)}
    assert found.errors == {"complainer": "it has no driver; it is too old; 7"}


@pytest.mark.parametrize("where", ["thinking", "judging"])
def test_a_driver_that_hangs_anywhere_holds_up_nothing_but_itself(where):
    first, stuck, last = Claimer(GPU), Claimer(device("03", "stuck")), Claimer(NIC)
    getattr(stuck, where).clear()
    agent = passes(first=first, stuck=stuck, last=last, timeout=1)

    found = until(agent, lambda found: len(found.devices) == 2)
    assert found.devices == {"first": (GPU,), "last": (NIC,)}
    assert found.errors == {"stuck": "Discovery does not end within 1 seconds"}

    getattr(stuck, where).set()
    assert until(agent, lambda found: not found.errors).devices.keys() == {"first", "stuck", "last"}


def at(place: base.Device, **facts: str) -> base.Device:
    return replace(place, control_path=base.ControlPath(cpid_type="X", cpid_info=facts))


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (GPU, GPU, "Driver first reports PCI 01 already"),
        # Control paths are equal in any order of their facts.
        (at(GPU, a="1", b="2"), at(NIC2, b="2", a="1"), "Driver first reports X 1 2 already"),
        (GPU, device("03", "gpu"), "Driver first reports deployable gpu already"),
    ],
    ids=["device", "path", "name"],
)
def test_what_two_drivers_report_is_the_first_ones(caplog, first, second, error):
    agent = passes(first=Driver(first), second=Driver(NIC, second))

    for _pass in range(2):
        found = agent.run()

        assert found.devices == {"first": (first,), "second": (NIC,)}
        assert found.errors == {"second": error}
    assert caplog.messages == [f"Driver second: {error}"]


@pytest.mark.parametrize("is_nonsense", [True, False])
def test_a_device_stays_with_its_driver_while_that_fails(is_nonsense):
    owner, other = Driver(GPU), Driver()
    agent = passes(owner=owner, other=other)
    agent.run()

    if is_nonsense:
        owner.devices = (NIC2, NIC2)
    else:
        owner.fault = OSError()
    other.devices = (GPU, NIC)

    found = agent.run()
    assert found.devices == {"other": (NIC,)}
    assert found.errors["other"] == "Driver owner reports PCI 01 already"
    assert found.errors["owner"] == ("It reports PCI 03 twice" if is_nonsense else "OSError: ")


def test_a_device_stays_as_it_was_where_what_is_new_of_it_is_anothers():
    owner, other = Driver(device("01", "region")), Driver(device("02", "card"))
    agent = passes(owner=owner, other=other)
    before = agent.run()
    assert before.errors == {}

    owner.fault = OSError()
    other.devices = (device("02", "card", "region"), NIC2)

    found = agent.run()
    assert found.devices == {"other": (device("02", "card"), NIC2)}
    assert found.errors["other"] == "Driver owner reports deployable region already"


def test_a_device_stays_with_its_driver_until_that_no_longer_reports_it():
    new, old = Driver(), Driver(GPU)
    agent = passes(new=new, old=old)
    agent.run()

    new.devices = (GPU,)
    assert agent.run().devices == {"new": (), "old": (GPU,)}

    old.devices = ()
    found = agent.run()
    assert found.devices == {"old": (), "new": (GPU,)}
    assert found.errors == {}


def test_drivers_share_one_walk_a_pass():
    first, second = PciReader(), PciReader()
    agent = passes(first=first, second=second)

    assert agent.run().errors == agent.run().errors == {}

    assert first.walks[0] is second.walks[0]
    assert first.walks[1] is second.walks[1]
    assert first.walks[0] is not first.walks[1]
