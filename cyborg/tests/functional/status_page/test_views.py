# SPDX-License-Identifier: Apache-2.0
"""The status page in a browser, over the real API: each view opened, used and looked at."""

from __future__ import annotations

import os
import pathlib

import pytest
import sqlalchemy as sa
from selenium.webdriver.common.keys import Keys

from cyborg import db
from cyborg.db import models
from cyborg.programming import operations
from cyborg.tests import hosts, shown_fleet
from cyborg.tests.browser import NARROW, WIDE, Browser

pytestmark = [pytest.mark.slow, pytest.mark.makes_up_rows]

#: Each view, and what it shows of the fleet.
VIEWS = {
    "": ["By class", "PGPU", "FPGA", "gpu-2.example", "8", "2 in use", "out of service"],
    "devices": ["NVIDIA H100 80GB HBM3", "gpu-1.example", "The fan is replaced.", "missing"],
    "requests": ["h100", "BindFailed", "no free attach handle", "research", "competitor"],
    "allocations": ["train-research", "Active", "No host has eight free accelerators."],
    "operations": ["In progress", "writing", "gzip-0.awsxclbin", "The host could not write it."],
    "pools": ["gzip", "4 missing", "No deployable of the pool is free."],
    "stuck": ["old-1", "NVML: no driver", "Xid 79", "The disk did not answer.", "BindFailed"],
}
OF_CARD = ["0000:19:00.0", "NUMA node 0", "32.0 GT/s x16", "0000:29:00.0", "PGPU", "research",
           "305.5 W"]
#: Of the card's history; and what the API says of a device that it does not have.
PAST = ["ECC errors were seen.", "cleaned", "used"]
UNKNOWN = "device?uuid=00000000-0000-4000-8000-000000000000"
#: Bytes of a picture in the documentation.
LARGEST_PICTURE = 120_000
MEMBER = {"X-User-Id": "user", "X-Project-Id": "research", "X-Roles": "member,reader"}


def card(hostname: str = "gpu-1.example") -> str:
    """The view of the first device of that host."""
    device, host = models.Device, models.Host
    query = sa.select(device.uuid).join(host, host.id == device.host_id)
    with db.reader() as session:
        return f"device?uuid={session.scalars(query.where(host.node == hostname)).first()}"


def look(browser: Browser, view: str, words: list[str]) -> None:
    """Look at a view with both kinds of eyes and windows: nothing may be wrong."""
    text = browser.open(view)
    assert [word for word in words if word not in text] == []
    assert browser.grave_faults() == []
    for width in (NARROW, WIDE):
        browser.resize(width)
        assert not browser.is_wider_than_its_window()
    browser.paint("dark")
    assert browser.grave_faults("color-contrast") == []
    browser.paint("light")
    assert browser.errors() == []


def test_each_view_shows_what_there_is_and_has_no_fault(browser: Browser) -> None:
    for view, words in VIEWS.items():
        look(browser, view, words)
    look(browser, card(), OF_CARD + PAST)
    look(browser, card("fpga-1.example"), ["fpga-1_card_0_region_1", "10 in use", "22 free"])
    asked = browser.asked()
    assert "/status/main.js" in asked
    assert [path for path in asked if not path.startswith(("/", "about:", "data:"))] == []
    # What is not there is told in the words of the API.
    assert "Device not found" in browser.open(UNKNOWN)
    assert "instance" in browser.open("requests?instance=nonsense")
    assert browser.open("nonsense").startswith("Fleet")
    # A handle that could not be cleaned is shown with the request to release.
    with db.reader() as session:
        handle = models.AttachHandle
        query = sa.select(handle.left_arq).where(handle.left_reason.is_not(None))
        arq = str(session.scalars(query).first())
    browser.open("stuck")
    (part,) = (each.text for each in browser.every("section") if "cleaned" in each.text)
    assert arq in part


def test_what_others_name_does_no_harm(browser: Browser) -> None:
    shown_fleet.poison()
    cards = [card(shown_fleet.NAME)]
    for view in [*VIEWS, *cards]:
        text = browser.open(view)
        assert "<script>" in text, view
        assert browser.driver.title.endswith("– Cyborg")
        assert len(browser.every("script, img, iframe, style, object")) == 1
        for width in (NARROW, WIDE):
            browser.resize(width)
            assert not browser.is_wider_than_its_window(), (view, width)
        assert len(text) < 60_000
    assert browser.errors() == []


def test_a_member_sees_what_is_of_its_project(browser: Browser) -> None:
    with db.reader() as session:
        arq = models.Arq
        foreign = session.execute(
            sa.select(arq.uuid, arq.consumer_uuid).where(arq.project_id == "competitor")
        ).all()
        own = session.scalars(sa.select(arq.uuid).where(arq.project_id == "research")).all()
        deployable = session.scalars(sa.select(models.Deployable.uuid)).first()
    secrets = {"competitor", "gpu-2", *(text for row in foreign for text in row if text)}
    browser.identify(**MEMBER)
    for view in [*VIEWS, card(), f"device?deployable={deployable}"]:
        text = browser.open(view)
        assert [secret for secret in secrets if secret in browser.driver.page_source] == []
        if view == "requests":
            assert [uuid for uuid in own if uuid not in text] == []
        if view == "devices":
            assert "Access was denied" in text
    assert "train-research" in browser.open("allocations")
    for view in (f"requests?instance={foreign[0][1]}", "requests?project_id=competitor",
                 "requests?state=Deleting", "allocations?project_id=competitor"):
        browser.open(view)
        assert browser.every("tbody tr") == []


def test_a_search_is_made_by_the_api_page_by_page(browser: Browser) -> None:
    cards = [hosts.device(str(each), hosts.deployable(f"new_{each}", [each])) for each in range(60)]
    hosts.apply(*cards, host="new")
    browser.open("devices")
    browser.asked()
    browser.find("[name=hostname]").send_keys("new.example", Keys.ENTER)
    browser.shown_with("new.example")
    assert len(browser.every("tbody tr")) == 50
    (first,) = (path for path in browser.asked() if path.startswith("/v2/"))
    assert first == "/v2/devices?limit=50&hostname=new.example"
    browser.every(".pager a")[-1].click()
    browser.shown_with("First page")
    assert len(browser.every("tbody tr")) == 10
    assert "marker=" in browser.asked()[-1]


def test_the_calls_of_a_view_do_not_grow_with_the_rows(browser: Browser) -> None:
    def calls() -> dict[str, int]:
        found = {}
        for view in VIEWS:
            browser.asked()
            browser.open(view)
            found[view] = len([path for path in browser.asked() if path.startswith("/v2/")])
        return found

    few = calls()
    assert max(few.values()) <= 9
    cards = [
        hosts.device(str(each), hosts.deployable(f"new_{each}", range(4)), unhealthy="It burns.")
        for each in range(120)
    ]
    for host in ("new-1", "new-2"):
        hosts.apply(*cards[: 60 if host == "new-1" else 0], host=host)
    with db.writer() as session:
        session.add_all(
            models.Arq(state=models.BIND_FAILED, device_profile_name="many", group={})
            for _ in range(120)
        )
    assert calls() == few


def test_what_is_behind_a_long_page_is_told_and_not_taken_for_well(browser, conf) -> None:
    with db.writer() as session:
        session.add_all(
            models.FunctionPool(
                name=f"pool-{each}", function_id="a", function_plain="a", free=0, max_devices=1,
                reason="There is no image." if each == 50 else None,
            )
            for each in range(51)
        )
    # A pool that lacks slots is stuck behind many that do not.
    assert "pool-50" in browser.open("stuck")

    host = models.Host
    with db.writer() as session:
        db.update(session, host, driver_errors={})
        db.update(session, host, host.name == "old-1", driver_errors={"qat": "It is mute."})
        db.update(session, models.Operation, state=operations.QUEUED)
    conf.set_override("max_limit", 2, group="api")
    assert "Drivers with errors\nOnly the first 2 were looked at." in browser.open("stuck")
    assert "There are more." in browser.open("operations").partition("All, newest")[0]
    assert "Only the first 2 were looked at." in browser.open(card("fpga-1.example"))


def test_keys_alone_lead_through_the_page(browser: Browser) -> None:
    browser.open("pools")
    seen = []
    for _ in range(12):
        browser.press(Keys.TAB)
        seen.append(browser.run("return document.activeElement.textContent.trim()"))
        if seen[-1] == "Devices":
            break
    assert seen[0] == "Skip to the content"
    browser.press(Keys.ENTER)
    browser.shown_with("NVIDIA H100")
    assert browser.find("[aria-current]").text == "Devices"


def test_the_page_is_read_again_by_itself_while_somebody_looks(browser: Browser) -> None:
    def rename(vendor: str) -> None:
        with db.writer() as session:
            db.update(session, models.Device, vendor=vendor)

    with browser.stopped_clock():
        browser.open("devices")
        where = browser.run("const a = document.querySelector('tbody a'); a.focus(); return a.href")
        rename("newer")
        browser.let_pass()
        browser.shown_with("newer")
        assert browser.run("return document.activeElement.href") == where
        rename("newest")
        browser.hide(hidden=True)
        browser.asked()
        browser.let_pass()
        assert browser.asked() == []
        browser.hide(hidden=False)
        browser.shown_with("newest")
        browser.find("#pause").click()
        browser.asked()
        browser.let_pass()
        assert browser.asked() == []
        browser.find("#pause").click()
        browser.shown()
        assert len(browser.asked()) == 1


def get_warm(browser: Browser) -> None:
    """Let sensors of the first card show one value after the other."""
    (place,) = shown_fleet.READINGS
    for degrees in (38, 41, 49, 58, 63, 66, 64, 67, 66, 61, 54):
        one = {"temperature_celsius": degrees, "power_watts": 10 * degrees - 290}
        with db.writer() as session:
            db.update(session, models.Host, readings={place: one})
        browser.read_again()


def test_pictures_of_the_documentation(browser: Browser, tmp_path: pathlib.Path) -> None:
    folder = pathlib.Path(os.environ.get("CYBORG_TEST_PICTURES", tmp_path))
    for name, (view, width, height, scheme) in {
        "status-fleet": ("", 960, 590, "light"),
        "status-card": (card(), 900, 1160, "light"),
        "status-stuck": ("stuck", 960, 740, "light"),
        "status-narrow": (card("fpga-1.example"), NARROW, 900, "dark"),
    }.items():
        browser.paint(scheme)
        browser.resize(width, height)
        browser.open(view)
        if name == "status-card":
            get_warm(browser)
        picture = folder / f"{name}.png"
        browser.photograph(picture)
        assert picture.stat().st_size < LARGEST_PICTURE
