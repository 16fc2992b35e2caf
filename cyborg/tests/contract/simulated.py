# SPDX-License-Identifier: Apache-2.0
"""The contract of every driver of PCI devices, on a simulated host with its vendor's cards."""

from __future__ import annotations

import json
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.db import models
from cyborg.drivers import base, pci
from cyborg.tests import hosts
from cyborg.tests.contract import containers, driver, passes
from cyborg.tests.simulated.preload import Host, Machine, folder


class SimulatedDriverContract(driver.DriverContract):
    """Inherit, and set ``entry_point`` and ``recorded``, a file in ``tests/data/hosts``.

    ``options`` is the text of a configuration file; ``{a100}`` in it is the address of that card.
    """

    recorded: str
    options = ""

    @pytest.fixture(scope="class")
    def simulated(self, simulator: Machine) -> Iterator[Host]:
        """The host, for tests that change nothing."""
        with folder() as root:
            yield Host(root, self.recorded, simulator)

    @pytest.fixture
    def changeable(self, simulate) -> Host:
        return simulate(self.recorded)

    @pytest.fixture(scope="class")
    def text(self, simulated: Host) -> str:
        names = {name: addresses[0] for name, addresses in simulated.layout.named.items()}
        return textwrap.dedent(self.options).format_map(names)

    @pytest.fixture
    def conf(self, conf: cfg.ConfigOpts, text: str, tmp_path: pathlib.Path) -> cfg.ConfigOpts:
        path = tmp_path / "driver.conf"
        path.write_text(text)
        conf(args=[], default_config_files=[str(path)], default_config_dirs=[])
        conf.set_override("host", "host-1")
        return conf

    @pytest.fixture(scope="class")
    def look(self, simulated: Host, text: str) -> driver.Look:
        def look(name: str = "host-1", passes: int = 1) -> list[list[base.Device]]:
            return [list(found) for found in self.run(simulated, text, name, passes)]

        return look

    @pytest.fixture(scope="class")
    def devices(self, look: driver.Look) -> list[base.Device]:
        return look()[0]

    @pytest.fixture
    def container_faults(self, simulated: Host, text: str) -> list[str]:
        return simulated.call(containers.on_this_host, self.entry_point, text)

    def run(
        self, simulated: Host, text: str, name: str = "host-1", count: int = 1
    ) -> list[tuple[base.Device, ...]]:
        """The devices of each pass. No pass may fail."""
        found = simulated.call(passes.run, [self.entry_point], text, name, count)
        assert [each.errors for each in found] == [{}] * count
        return [each.devices[self.entry_point] for each in found]

    @pytest.mark.makes_up_rows
    @pytest.mark.usefixtures("database")
    def test_whatever_is_lost_nothing_in_use_is_removed(self, changeable, text, devices):
        """Drivers, virtual functions, cards: through the report, as the conductor applies it.

        A card that comes back is the same.
        """
        simulated = changeable
        self._report(simulated, text)
        held = _hold_one_of_each()
        assert held
        before = _rows()
        address = pci.join(devices[0].control_path.cpid_info)
        card = simulated.function(simulated.function(address).pf or address)
        simulated.pull(card.address)
        self._report(simulated, text)
        simulated.appear(card)
        self._report(simulated, text)
        assert _arqs_of_handles() == held.keys()
        assert _rows() == before
        for lost in _losses(simulated, held.values()):
            for lose, address in lost:
                lose(address)
            self._report(simulated, text)
            assert _arqs_of_handles() == held.keys()
        assert simulated.call(_addresses).isdisjoint(held.values())

    def test_a_function_that_vanishes_meanwhile_takes_no_other_along(
        self, simulated, text, devices
    ):
        places = {each for device in devices for each in sorted(_functions(device))[:2]}
        some = sorted(places)[:: len(places) // 8 + 1]

        found = simulated.call(passes.without_each, self.entry_point, text, some)

        known = {deployable.name for device in devices for deployable in device.deployables}
        for gone, left in found.items():
            assert {dep.name for device in left for dep in device.deployables} <= known
            remaining = [_plain(each) for each in left]
            for device in devices:
                if gone.rpartition(":")[0] not in _buses(device):
                    assert _plain(device) in remaining

    def _report(self, simulated: Host, text: str) -> None:
        (found,) = simulated.call(passes.run, [self.entry_point], text)
        # It may say what it leaves out, but must not fail.
        assert self.entry_point in found.devices, found.errors
        hosts.apply(by_driver=found.devices, errors=found.errors)


class WholeCardContract(SimulatedDriverContract):
    """For a driver whose first device is a card that is given out whole."""

    #: Card, type, class and first traits of that device, which no release may change.
    always: tuple[str, str, str, tuple[str, ...]]
    #: How many of its functions a guest is given.
    given = 1

    def test_a_whole_card_is_as_it_always_was(self, simulated, devices):
        card, kind, resource_class, traits = self.always
        address = simulated.card(card)
        (part,) = devices[0].deployables
        assert pci.join(devices[0].control_path.cpid_info) == address
        assert (part.name, part.num_accelerators) == (f"host-1_{address}", 1)
        assert (devices[0].type, part.resource_class) == (kind, resource_class)
        assert part.traits[: len(traits)] == traits
        assert pci.join(part.attach_handles[0].attach_info) == address
        assert len(part.attach_handles) == self.given


def _addresses() -> set[str]:
    return set(pci.scan())


def _plain(device: base.Device) -> base.Device:
    wire = device.to_wire()
    return base.Device.from_wire({**wire, "unhealthy": None})


def _functions(device: base.Device) -> set[str]:
    """The functions that a device names."""
    path = device.control_path
    found = {pci.join(path.cpid_info)} if path.cpid_type != base.SYSFS else set()
    for deployable in device.deployables:
        for handle in deployable.attach_handles:
            address = _address(handle.attach_info)
            found |= {address} if address is not None else set()
    return found


def _address(info: Mapping[str, str]) -> str | None:
    """The function of a handle, or of the card that it is a slice of."""
    return pci.join(info) if "function" in info else info.get("pci_address")


def _buses(device: base.Device) -> set[str]:
    """The buses of a device's functions: what is on another has nothing to do with it."""
    return {address.rpartition(":")[0] for address in _functions(device)}


def _losses(simulated: Host, held: Iterable[str]) -> list[list[tuple[Callable[[str], None], str]]]:
    """What is lost, step by step: a virtual function, a driver, a function, all cards."""
    given = sorted(set(held))
    cards = sorted({simulated.function(address).pf or address for address in given})

    def pull(address: str) -> None:
        if simulated.files.path(f"bus/pci/devices/{address}").exists():
            simulated.pull(address)

    virtual = [address for address in given if address not in cards]
    return [
        [(pull, address) for address in virtual[:1]],
        [(simulated.detach, cards[0])],
        [(pull, given[-1])],
        [(pull, address) for address in cards],
    ]


def _hold_one_of_each() -> dict[str, str]:
    """Let an ARQ hold the first handle of each deployable; the function of each, by ARQ."""
    query = sa.select(models.AttachHandle).order_by(models.AttachHandle.id)
    held: dict[int, str] = {}
    arqs: dict[str, str] = {}
    with db.writer() as session:
        for handle in session.scalars(query):
            address = _address(json.loads(handle.attach_info))
            if handle.deployable_id in held or address is None:
                continue
            held[handle.deployable_id] = handle.uuid
            uuid = models.new_uuid()
            arqs[uuid] = address
            session.add(
                models.Arq(
                    uuid=uuid,
                    project_id="p",
                    state=models.BOUND,
                    device_profile_name="dp",
                    group={},
                    consumer_uuid=models.new_uuid(),
                    attach_handle_id=handle.id,
                )
            )
    return arqs


def _arqs_of_handles() -> set[str]:
    query = sa.select(models.Arq.uuid).join(
        models.AttachHandle, models.AttachHandle.id == models.Arq.attach_handle_id
    )
    with db.reader() as session:
        return set(session.scalars(query))


def _rows() -> dict[str, tuple[str, bool]]:
    """The uuid of each deployable by its name, and whether it is missing."""
    deployable = models.Deployable
    with db.reader() as session:
        rows = session.execute(sa.select(deployable.name, deployable.uuid, deployable.missing))
        return {name: (uuid, missing) for name, uuid, missing in rows}
