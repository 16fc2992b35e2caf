# SPDX-License-Identifier: Apache-2.0
"""The sensors of a card on its page, from the files of its host to what a person sees."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from cyborg import db, rpc
from cyborg.agent import discovery
from cyborg.db import models
from cyborg.drivers import registry
from cyborg.inventory import report as inventory_report
from cyborg.tests import hosts
from cyborg.tests.browser import NARROW, WIDE, Browser
from cyborg.tests.contract import passes
from cyborg.tests.standalone_site import TIMEOUT, Site, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.makes_up_rows]

GPU = {
    "card": "mi210",
    "name": "gpu",
    "attributes": {
        "hwmon/hwmon3/temp1_input": "41000",
        "hwmon/hwmon3/power1_average": "91000000",
    },
}
DRIVER = "amd_gpu_driver"


def reported(sensor: str, values: list[str]) -> list[dict[str, Any]]:
    """The reports of an agent while a sensor shows these values."""
    loaded = registry.load(passes.configured("", [DRIVER], "warm-1"))
    looking = discovery.Discovery("warm-1", loaded.drivers, timeout=60, measured=True)
    made = []
    for number, value in enumerate(values):
        pathlib.Path(sensor).write_text(value)
        found = looking.run()
        one = hosts.report(
            host="warm-1",
            by_driver=found.devices,
            order=(1, number + 1),
            errors=found.errors,
            readings=found.readings,
        )
        made.append(one.to_wire())
    return made


@pytest.fixture
def reports(simulate: Any) -> list[rpc.HostReport]:
    simulated = simulate({"cards": [GPU]})
    sensor = f"/sys/bus/pci/devices/{simulated.card('gpu')}/hwmon/hwmon3/temp1_input"
    said = simulated.call(reported, sensor, ["41000", "52500", "47000"])
    return [rpc.HostReport.from_wire(each) for each in said]


def served(folder: str, sensor: str, values: list[str]) -> list[float | None]:
    """What the API of a standalone Cyborg shows after a sensor has shown these values."""
    options = f"enabled_drivers = {DRIVER}\nreport_interval = 1\ndiscovery_interval = 1\n"
    site = Site(pathlib.Path(folder), f"[agent]\n{options}")
    http = requests.Session()
    http.headers["OpenStack-API-Version"] = "accelerator 2.4"

    def get(path: str) -> Any:
        return http.get(f"{site.url}/v2/{path}", timeout=TIMEOUT).json()

    def shown() -> list[float | None]:
        uuids = [each["uuid"] for each in get("devices")["devices"]]
        found = [get(f"devices/{uuid}")["readings"] or {} for uuid in uuids]
        return [each.get("temperature_celsius") for each in found]

    def is_shown(degrees: float) -> bool:
        return shown() == [degrees]

    with site.serve():
        for value in values:
            pathlib.Path(sensor).write_text(value)
            wanted = functools.partial(is_shown, int(value) / 1000)
            wait_for(f"a reading of {value}", wanted)
        return shown()


def test_a_standalone_cyborg_reads_sensors_by_itself(simulate, tmp_path) -> None:
    simulated = simulate({"cards": [GPU]})
    sensor = f"/sys/bus/pci/devices/{simulated.card('gpu')}/hwmon/hwmon3/temp1_input"

    seen = simulated.call(served, str(tmp_path / "state"), sensor, ["41000", "52500"])

    assert seen == [52.5]


def view(name: str = "warm-1") -> str:
    device, host = models.Device, models.Host
    query = sa.select(device.uuid).join(host, host.id == device.host_id)
    with db.reader() as session:
        return f"device?uuid={session.scalars(query.where(host.name == name)).first()}"


def part(browser: Browser, heading: str = "Sensors") -> str | None:
    """The text of the part of the view with that heading."""
    found = [each.text for each in browser.every("section") if each.text.startswith(heading)]
    return found[0] if found else None


def lines(browser: Browser) -> Mapping[str, list[list[str]]]:
    """The points of each line, by what is said in the place of the picture."""
    found: list[list[str]] = browser.run(
        "return [...document.querySelectorAll('.spark')].map((each) =>"
        " [each.getAttribute('aria-label'), each.firstChild.getAttribute('points')])"
    )
    return {label: [point.split(",") for point in points.split()] for label, points in found}


def test_a_reading_is_a_line_with_the_value_of_now(browser, reports) -> None:
    inventory_report.apply_report(reports[0])
    browser.open(view())
    text = part(browser)
    assert text is not None
    for words in ("Temperature\n41 °C", "Power\n91 W", "Memory in use\n10.7 MiB"):
        assert words in text
    assert "Temperature: 41 °C" in lines(browser)

    for each, value in zip(reports[1:], ("52.5", "47"), strict=True):
        assert inventory_report.note_unchanged(each.unchanged())
        browser.read_again()
        assert f"{value} °C" in str(part(browser))
    label = "Temperature: 47 °C, lowest 41 °C, highest 52.5 °C"
    # At the lowest, at the highest, and between them.
    assert [height for _, height in lines(browser)[label][-3:]] == ["22.0", "2.0", "11.6"]
    assert browser.grave_faults() == []
    for width in (NARROW, WIDE):
        browser.resize(width)
        assert not browser.is_wider_than_its_window()
        assert all(each.size["width"] > 50 for each in browser.every(".spark"))
    browser.paint("dark")
    assert browser.grave_faults("color-contrast") == []
    assert browser.errors() == []


def test_a_line_leads_over_no_gap_and_without_readings_there_is_none(browser, reports) -> None:
    first, second, third = reports
    inventory_report.apply_report(first)
    browser.open(view())

    with db.writer() as session:
        db.update(session, models.Host, models.Host.name == "warm-1", down=True)
    browser.read_again()
    assert part(browser) is None
    assert part(browser, "History") is not None

    assert inventory_report.note_unchanged(second.unchanged())
    browser.read_again()
    assert "Temperature: 52.5 °C" in lines(browser)
    assert inventory_report.note_unchanged(
        dataclasses.replace(third, readings={}).unchanged()
    )
    browser.read_again()
    assert lines(browser) == {}

    browser.open(view("fpga-1"))
    assert part(browser) is None
    assert part(browser, "History") is not None
