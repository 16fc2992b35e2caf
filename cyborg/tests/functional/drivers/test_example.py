# SPDX-License-Identifier: Apache-2.0
"""The driver of the guide, installed from a distribution of its own."""

from __future__ import annotations

import pathlib
import tomllib

import pytest

from cyborg.tests.contract import passes
from cyborg.tests.contract import simulated as contract

EXAMPLE = pathlib.Path(__file__).parents[2] / "example"


@pytest.fixture(scope="module", autouse=True)
def installed(simulator, tmp_path_factory):
    """What pip would do with the example's folder, here and on the simulated hosts."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site")
    metadata = site / "acme_accelerator-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: 1.0\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in [f"[{group}]", *(f"{name} = {point}" for name, point in points.items())]
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    (site / "acme_accelerator.py").write_text((EXAMPLE / "acme_accelerator.py").read_text())
    simulator.call(site, passes.install, str(site))
    with passes.installed(str(site)):
        yield
    simulator.call(site, passes.uninstall, str(site))


# The test of the guide begins here.
class TestAcme(contract.SimulatedDriverContract):
    entry_point = "acme_driver"
    recorded = "example"

    def test_a_card_is_given_itself_or_its_virtual_functions(self, devices):
        whole, shared = devices

        assert len(whole.deployables) == 1
        assert len(shared.deployables) == 4

    def test_what_the_driver_tells_is_reported(self, devices):
        (deployable,) = devices[0].deployables

        assert {"CUSTOM_ACME_0001", "CUSTOM_ACME_CRYPTO"} <= set(deployable.traits)
        assert deployable.attributes["firmware"] == "1.0.7"
        assert deployable.attributes["memory_mib"] == 16384

    def test_a_card_that_is_too_hot_ails(self, changeable, text):
        card = changeable.card("acme")
        changeable.files.put(f"{changeable.path(card)}/acme/overheated", 1)

        (found,) = changeable.call(passes.run, [self.entry_point], text)

        sentences = [device.unhealthy for device in found.devices[self.entry_point]]
        assert sentences == [f"Acme card {card} is too hot", None]
