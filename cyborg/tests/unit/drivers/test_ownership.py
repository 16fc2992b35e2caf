# SPDX-License-Identifier: Apache-2.0
"""No two drivers give out one PCI function, whatever control paths they name."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from cyborg.agent import discovery, ownership
from cyborg.drivers import base, function_owners, pci
from cyborg.tests.contract import driver as contract
from cyborg.tests.discovered import until
from cyborg.tests.pci_functions import function

PATIENCE = 60
A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
LETTERS = "0000:3b:00.0"


class Claimer:
    """Claims what it is told to, and reports it."""

    def __init__(self, wanted: Mapping[str, int], error: Exception | None = None) -> None:
        self.wanted = wanted
        self.error = error

    def exactness(self, functions: pci.Snapshot) -> Mapping[str, int]:
        if self.error is not None:
            raise self.error
        return self.wanted

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        for address in self.wanted.keys() - host.foreign:
            yield device(address, address)


def device(path: str, *given: str, kind: str = "PCI") -> base.Device:
    handles = tuple(
        base.AttachHandle(attach_type=kind, attach_info=pci.split(address)) for address in given
    )
    return base.Device(
        type="PCI",
        vendor="10de",
        model="20f1",
        control_path=base.ControlPath(cpid_type="PCI", cpid_info=pci.split(path)),
        deployables=(
            base.Deployable(
                name=f"host-1_{path}",
                resource_class="CUSTOM_PCI",
                num_accelerators=len(handles),
                attach_handles=handles,
            ),
        ),
    )


def settle(**drivers: Claimer) -> function_owners.Owners:
    functions = contract.snapshot([function(each) for each in (A, B, C)])
    answers = ownership.ask(drivers, functions, PATIENCE)
    assert answers.hanging == {}
    return function_owners.assign(answers.exactness)


def test_the_most_exact_claim_wins_whatever_the_order():
    broken = Claimer({}, RuntimeError("no"))
    owners = settle(
        rough=Claimer({A: 4, B: 4}), exact=Claimer({B: 8}), broken=broken, other=Claimer({C: 1})
    )

    assert (owners.of, owners.ties) == ({A: "rough", B: "exact", C: "other"}, {})
    assert owners.foreign_to("rough") == {B, C}


def test_among_equals_the_first_wins_and_the_other_is_told():
    first, second = Claimer({A: 4, B: 4}), Claimer({A: 4, B: 4, C: 4})
    owners = settle(first=first, second=second)

    assert owners.of == {A: "first", B: "first", C: "second"}
    assert owners.ties == {
        "second": f"PCI function {A} and 1 more is left to driver first, which means it as exactly "
        "and comes first in enabled_drivers"
    }
    # A tie that a third one decides is none.
    owners = settle(first=first, second=second, third=Claimer({A: 5, B: 5}))
    assert (owners.of, owners.ties) == ({A: "third", B: "third", C: "second"}, {})


@pytest.mark.parametrize("claimed", [{A: None}, {None: 1}, [A], 7])
def test_claims_that_are_nonsense_are_told_and_hinder_no_other(claimed):
    broken = Claimer({})
    broken.wanted = claimed

    findings = found(first=Claimer({A: 1}), broken=broken, last=Claimer({B: 1}))

    assert findings.devices.keys() >= {"first", "last"}
    assert findings.errors.keys() == {"broken"}


def test_who_cannot_say_what_it_claims_keeps_what_it_had_and_reports_nothing():
    exact, rough = Claimer({A: 8}), Claimer({A: 1, B: 1})
    agent = discovery.Discovery("host-1", {"exact": exact, "rough": rough}, timeout=60)
    assert agent.run().devices == {"exact": (device(A, A),), "rough": (device(B, B),)}

    exact.error = OSError("one card is gone")
    findings = agent.run()

    assert findings.devices == {"rough": (device(B, B),)}
    assert findings.errors["exact"] == "OSError: one card is gone"


class Reporter:
    def __init__(self, *devices: base.Device) -> None:
        self.devices = devices

    def discover(self, host: base.Host) -> tuple[base.Device, ...]:
        return self.devices


def found(**drivers: base.Driver) -> discovery.Findings:
    return discovery.Discovery("host-1", drivers, timeout=60).run()


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (device(A, A), device(B, A), A),
        (device(LETTERS, LETTERS), device(B, LETTERS.upper()), LETTERS),
        (device(LETTERS, LETTERS), device(LETTERS.upper(), LETTERS.upper()), LETTERS),
        (device(A, A, kind="MDEV"), device(B, A), A),
    ],
    ids=["another control path", "in capitals", "all in capitals", "a part of it"],
)
def test_a_function_is_given_out_by_one_driver_only(first, second, shared):
    findings = found(first=Reporter(first), second=Reporter(second))

    assert findings.devices["second"] == ()
    error = findings.errors["second"]
    assert error.startswith("Driver first reports PCI ")
    assert shared in error


def test_simulated_handles_are_no_functions():
    one, other = (Reporter(device(path, A, kind="TEST_PCI")) for path in (A, B))

    assert list(found(first=one, second=other).devices) == ["first", "second"]


def test_a_function_that_a_device_has_twice_is_given_to_nobody():
    (part,) = device(A, A).deployables
    handle = part.attach_handles[0]
    other = replace(handle, attach_info={**handle.attach_info, "physical_network": "blue"})
    both = replace(part, attach_handles=(handle, other), num_accelerators=2)
    parts = (part, replace(part, name="host-1_other"))

    findings = found(
        first=Reporter(replace(device(A, A), deployables=(both,))),
        second=Reporter(replace(device(B, B), deployables=parts)),
        third=Reporter(device(C, C)),
    )

    assert findings.devices == {"third": (device(C, C),)}
    sentence = f"ValueError: discover() returned PCI function {A} twice in one device"
    assert findings.errors == dict.fromkeys(["first", "second"], sentence)


class Hanging(Claimer):
    """Does not end to say what it claims while ``gate`` is closed."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        super().__init__(wanted)
        self.gate = threading.Event()
        self.gate.set()

    def exactness(self, functions: pci.Snapshot) -> Mapping[str, int]:
        self.gate.wait(PATIENCE)
        return super().exactness(functions)


def test_only_what_a_driver_that_hangs_had_is_kept_from_others():
    exact, rough = Hanging({A: 8}), Claimer({A: 1, B: 1})
    agent = discovery.Discovery("host-1", {"exact": exact, "rough": rough}, timeout=1)
    found = until(agent, lambda found: not found.errors)
    assert found.devices == {"exact": (device(A, A),), "rough": (device(B, B),)}

    exact.gate.clear()
    found = until(agent, lambda found: "exact" in found.errors and "rough" in found.devices)
    assert found.devices == {"rough": (device(B, B),)}
    assert found.errors["rough"].startswith("Driver exact reports ")

    exact.gate.set()
    found = until(agent, lambda found: not found.errors)
    assert found.devices == {"exact": (device(A, A),), "rough": (device(B, B),)}


def test_a_driver_may_not_give_out_a_function_twice_itself():
    """Nor a card whole and a part of it."""
    findings = found(driver=Reporter(device(A, A), device(B, A)))
    assert findings.devices == {}
    assert findings.errors == {"driver": f"It reports PCI function {A} twice"}

    functions = {A: function(A, vfs=(B,)), B: function(B, pf=A)}
    errors: dict[str, str] = {}
    given = {"both": (device(A, A), device(B, B))}
    assert ownership.Ownership(["both"]).accept(given, errors, functions) == {}
    assert errors == {"both": f"It reports PCI function {B} twice"}


class Doctor(Reporter):
    def __init__(self, answer: object, *devices: base.Device) -> None:
        super().__init__(*devices)
        self.answer = answer

    def health(self, device: base.Device, host: base.Host) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


def test_a_device_is_reported_with_what_is_wrong_with_it():
    """A driver that cannot tell is no reason to lose its devices."""
    findings = found(
        well=Doctor(None, device(A)),
        ill=Doctor("It is too warm", device(B)),
        dumb=Doctor(RuntimeError("no"), device(C)),
    )

    shown = {name: devices[0] for name, devices in findings.devices.items()}
    health = {name: (each.unhealthy, each.health_unknown) for name, each in shown.items()}
    assert health == {
        "well": (None, False), "ill": ("It is too warm", False), "dumb": (None, True)
    }
    path = device(C).control_path.place
    told = f"The health of {path} cannot be told, RuntimeError: no"
    assert findings.errors == {"dumb": told}
