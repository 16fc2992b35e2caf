# SPDX-License-Identifier: Apache-2.0
"""Drivers are loaded from real entry points; a bad one is named and hinders nobody."""

from __future__ import annotations

import pytest
import stevedore

from cyborg.drivers import fake, registry

MODULE = """
class Good:
    driver_api = 1
    def __init__(self, conf):
        self.host = conf.host
    def discover(self, host):
        return []

class NoDriver:
    def __init__(self, conf):
        pass

class Silent(Good):
    driver_api = None

class Later(Good):
    driver_api = 2

class Failing(Good):
    def __init__(self, conf):
        raise self.error

class Broken(Failing):
    error = RuntimeError("no library of the vendor")

class Doubtful(Failing):
    error = AssertionError("no card of the vendor")

class Offended(Failing):
    error = SystemExit("no licence of the vendor")
"""
NAMES = ("Good", "NoDriver", "Silent", "Later", "Broken", "Doubtful", "Offended", "Nothing")
ENTRY_POINTS = "\n".join(
    [
        "[cyborg.accelerator.driver]",
        *(f"{name.lower()} = strange_drivers:{name}" for name in NAMES),
        "absent_module = strange_module:Good",
    ]
)


@pytest.fixture(autouse=True)
def strange_drivers(tmp_path, monkeypatch):
    (tmp_path / "strange_drivers.py").write_text(MODULE)
    metadata = tmp_path / "strange_drivers-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: strange-drivers\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    # stevedore remembers what it has seen in this process.
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()
    yield
    stevedore.ExtensionManager.ENTRY_POINT_CACHE.clear()


def load(conf, *names: str) -> registry.Registry:
    conf.set_override("enabled_drivers", list(names), group="agent")
    return registry.load(conf)


def test_drivers_come_in_the_order_of_the_option_and_get_the_configuration(conf):
    loaded = load(conf, "good", "fake_driver", "good")

    assert list(loaded.drivers) == ["good", "fake_driver"]
    assert vars(loaded.drivers["good"]) == {"host": "host-1"}
    assert isinstance(loaded.drivers["fake_driver"], fake.FakeDriver)
    assert loaded.errors == {}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nodriver", "NoDriver is not a driver: it has no method discover"),
        ("silent", "Silent does not say for which driver API it was written"),
        ("silent", "then set driver_api = 1"),
        ("later", "for driver API 2, and this agent has 1. Install the driver's release for "),
        ("broken", "RuntimeError: no library of the vendor"),
        ("doubtful", "AssertionError: no card of the vendor"),
        ("offended", "SystemExit: no licence of the vendor"),
        ("nothing", "Nothing"),
        ("absent_module", "No module named 'strange_module'"),
        ("unheard_of", "No driver of this name is installed"),
    ],
)
def test_a_bad_driver_is_named_and_the_others_are_loaded(conf, name, sentence):
    loaded = load(conf, "fake_driver", name, "good")

    assert list(loaded.drivers) == ["fake_driver", "good"]
    assert list(loaded.errors) == [name]
    assert sentence in loaded.errors[name]


def test_drivers_that_are_not_enabled_are_loaded_as_far_as_possible(conf, site):
    others = registry.load_others(conf)

    assert {"good", "amd_gpu_driver"} <= others.keys()
    assert others.keys().isdisjoint({"fake_driver", "broken", "nodriver"})
