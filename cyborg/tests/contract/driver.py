# SPDX-License-Identifier: Apache-2.0
"""The contract of every driver. A driver's test class inherits these tests."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping

import os_resource_classes
import os_traits
import pytest
from oslo_config import cfg

from cyborg.drivers import base, pci, registry, trait_names
from cyborg.tests.contract import containers

#: ``look(host_name, passes)``: the devices of each pass.
Look = Callable[..., list[list[base.Device]]]


@dataclasses.dataclass(frozen=True)
class Host:
    """A host whose PCI functions are given instead of read."""

    name: str = "host-1"
    pci: pci.Snapshot = dataclasses.field(default_factory=lambda: snapshot([]))
    foreign: frozenset[str] = frozenset()


class Files(pci.Details):
    """What sysfs shows below functions: ``{address: {path: text}}``, paths as in sysfs."""

    def __init__(self, texts: Mapping[str, Mapping[str, object]]) -> None:
        self._texts = texts
        #: Functions that were taken out since the walk.
        self.vanished: set[str] = set()
        #: What ``pci.ids`` has, by ``vendor:device``.
        self.products: dict[str, str] = {}
        #: Where functions are, if that matters: the path of each.
        self.locations: dict[str, str] = {}

    def read(self, address: str, path: str) -> str:
        text = self._texts.get(address, {}).get(path)
        if text is None or address in self.vanished:
            raise FileNotFoundError(errno.ENOENT, f"no {path} of {address}")
        return f"{text}\n"

    def names(self, address: str, path: str) -> set[str]:
        below = f"{path}/" if path else ""
        names = {
            known.removeprefix(below).partition("/")[0]
            for known in self._texts.get(address, {})
            if known.startswith(below)
        }
        if not names or address in self.vanished:
            raise FileNotFoundError(errno.ENOENT, f"no {path} of {address}")
        return names

    def exists(self, address: str) -> bool:
        return address not in self.vanished

    def location(self, address: str) -> str:
        return self.locations.get(address, address)

    def product(self, vendor: str, device: str) -> str | None:
        return self.products.get(f"{vendor}:{device}")


def snapshot(
    functions: Iterable[pci.Function],
    files: Files | None = None,
    used: Mapping[str, str] | None = None,
) -> pci.Snapshot:
    """A walk that found these functions on a host that uses none, unless ``used`` says which."""
    return pci.Snapshot(functions, files or Files({}), used or {}, {})


def host_with(
    functions: Iterable[pci.Function],
    files: Mapping[str, Mapping[str, object]] | None = None,
    used: Mapping[str, str] | None = None,
) -> Host:
    """A host with these PCI functions and what sysfs shows below them."""
    return Host(pci=snapshot(functions, Files(files or {}), used))


class DriverContract:
    """Inherit, set ``entry_point``, and override ``conf`` and ``host`` as the driver needs.

    The host must show the driver one device at least. A driver of PCI devices inherits
    :class:`cyborg.tests.contract.simulated.SimulatedDriverContract` instead.
    """

    entry_point: str

    @pytest.fixture
    def host(self) -> Host:
        return Host()

    @pytest.fixture
    def make(self, conf: cfg.ConfigOpts) -> Callable[[], base.Driver]:
        found = importlib.metadata.entry_points(group=registry.NAMESPACE, name=self.entry_point)
        assert found, f"No driver {self.entry_point} is installed: pip install it before the test"
        (entry_point,) = found
        return lambda: entry_point.load()(conf)

    @pytest.fixture
    def look(self, make, host) -> Look:
        """What a new driver finds, on a host of that name, in each of some passes."""

        def look(name: str = "host-1", passes: int = 1) -> list[list[base.Device]]:
            driver, there = make(), dataclasses.replace(host, name=name)
            return [list(driver.discover(there)) for _ in range(passes)]

        return look

    @pytest.fixture
    def devices(self, look: Look) -> list[base.Device]:
        return look()[0]

    @pytest.fixture
    def container_faults(self, make, devices) -> list[str]:
        """What is wrong with what the driver says that containers need."""
        return containers.faults(make(), devices)

    def test_the_registry_loads_it(self, conf, make):
        conf.set_override("enabled_drivers", [self.entry_point], group="agent")

        loaded = registry.load(conf)

        assert loaded.errors == {}
        assert type(loaded.drivers[self.entry_point]) is type(make())

    def test_it_finds_devices_that_cross_the_wire_unchanged(self, devices):
        assert devices
        for device in devices:
            assert base.Device.from_wire(json.loads(json.dumps(device.to_wire()))) == device

    def test_two_passes_and_two_drivers_find_the_same(self, look, devices):
        assert look(passes=2) == [devices, devices]

    def test_it_names_nothing_that_placement_refuses_and_its_facts_are_traits(self, devices):
        for deployable in _deployables(devices):
            name = deployable.resource_class
            assert name in os_resource_classes.STANDARDS or name.startswith("CUSTOM_")
            for trait in deployable.traits:
                assert trait in os_traits.get_traits() or trait.startswith("CUSTOM_")
            assert set(trait_names.of_facts(deployable.attributes)) <= set(deployable.traits)

    def test_paths_names_and_handles_are_distinct(self, devices):
        handles = [
            (each.attach_type, base.canonical_json(dict(each.attach_info)))
            for each in _handles(devices)
        ]
        for each in (
            [base.canonical_json(dict(device.control_path.cpid_info)) for device in devices],
            [deployable.name for deployable in _deployables(devices)],
            handles,
        ):
            assert len(set(each)) == len(each)

    def test_names_begin_with_the_host_and_another_host_has_others(self, look, devices):
        (elsewhere,) = look("host-2")

        names = {deployable.name for deployable in _deployables(devices)}
        assert all(name.startswith("host-1_") for name in names)
        assert names.isdisjoint(deployable.name for deployable in _deployables(elsewhere))

    def test_handles_are_enough_and_what_nova_takes(self, devices):
        for deployable in _deployables(devices):
            assert len(deployable.attach_handles) >= deployable.num_accelerators
        for handle in _handles(devices):
            if handle.attach_type in {"PCI", "TEST_PCI"}:
                for key in ("domain", "bus", "device", "function"):
                    assert int(handle.attach_info[key], 16) >= 0
                    assert not handle.attach_info[key].startswith("0x")

    def test_device_nodes_are_named_by_what_outlives_a_reboot(self, devices):
        for deployable in _deployables(devices):
            nodes = [each for each in deployable.attach_handles if each.attach_type == base.NODES]
            # No flavor asks for them by accident.
            assert not nodes or deployable.resource_class.startswith("CUSTOM_")
            for handle in nodes:
                assert not any(value.startswith("/dev") for value in handle.attach_info.values())

    def test_what_is_no_pci_function_has_its_path(self, devices):
        for path in (device.control_path for device in devices):
            if path.cpid_type == base.SYSFS:
                assert path.cpid_info["path"].startswith("/sys/devices/"), path

    def test_a_container_gets_what_is_there(self, container_faults):
        assert container_faults == []

    def test_it_has_the_abilities_that_its_deployables_need(self, make, devices, tmp_path):
        """It refuses what is no bitstream before anything is written."""
        driver = make()
        for deployable in _deployables(devices):
            assert not deployable.prepares or isinstance(driver, base.Preparable)
            assert not deployable.cleans or isinstance(driver, base.Cleanable)
            has_layouts = deployable.program_mode == base.LAYOUT
            writer = base.Reconfigurable if has_layouts else base.Programmable
            assert not deployable.program_mode or isinstance(driver, writer)
        empty = tmp_path / "empty"
        empty.touch()
        for target in program_targets(devices)[:1]:
            with pytest.raises(base.NothingWritten):
                driver.program(target, empty)

    def test_a_function_that_is_shown_is_told_once(self, devices):
        """The conductor makes the trait of it; reported as one, it would outlive the function."""
        for deployable in _deployables(devices):
            if deployable.function:
                told = deployable.function.replace("-", "").upper()
                assert not any(trait.endswith(told) for trait in deployable.traits)


class HostStepContract(DriverContract):
    """For a driver whose steps need nothing of the host."""

    def test_a_step_may_be_repeated(self, make, devices):
        driver = make()
        for device in devices:
            for deployable in device.deployables:
                for reported in deployable.attach_handles[:1]:
                    handle = base.HeldHandle(
                        attach_type=reported.attach_type,
                        attach_info=reported.attach_info,
                        uuid="313f7a53-cebb-4685-9640-5b054d4b82c5",
                        arq="a",
                        control_path=device.control_path,
                    )
                    for _ in range(2):
                        if deployable.prepares:
                            driver.prepare(handle)
                    for _ in range(2):
                        if deployable.cleans:
                            driver.clean(handle)


def program_targets(devices: Iterable[base.Device]) -> list[base.ProgramTarget]:
    """Every deployable that can be programmed, as a driver is given it."""
    return [
        base.ProgramTarget(
            deployable=deployable.name,
            control_path=device.control_path,
            attach_handles=deployable.attach_handles,
        )
        for device in devices
        for deployable in device.deployables
        if deployable.program_mode not in {None, base.LAYOUT}
    ]


def _deployables(devices: Iterable[base.Device]) -> list[base.Deployable]:
    return [deployable for device in devices for deployable in device.deployables]


def _handles(devices: Iterable[base.Device]) -> list[base.AttachHandle]:
    return [
        handle
        for device in devices
        for deployable in device.deployables
        for handle in deployable.attach_handles
    ]
