# SPDX-License-Identifier: Apache-2.0
"""Pages with their style and scripts, in a browser."""

from __future__ import annotations

import os
import pathlib
import shutil
import threading
from collections.abc import Iterator

import pytest
from cheroot import wsgi
from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application
from django.test import override_settings
from openstack_dashboard import theme_settings
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as conditions
from selenium.webdriver.support.wait import WebDriverWait

from cyborg.policy.enforcer import Enforcer
from cyborg.tests import callers, hosts, shown_fleet
from cyborg.tests.browser import NARROW, WIDE, Browser
from cyborg.tests.service import PATIENCE, Site
from cyborg_dashboard.tests.conftest import Dashboard

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="it needs chromium")
DEVICES = "/admin/accelerator_devices/"
PROFILES = "/admin/accelerator_profiles/"
PAGES = (
    *("/admin/accelerators/", DEVICES, f"{DEVICES}act/hosts/drain/{hosts.ROOT}/", PROFILES),
    *(f"{PROFILES}create/", "/project/accelerators/"),
)
#: Faults of Horizon's own frame, colours and widgets, which all its panels have.
OF_HORIZON = (
    *("button-name:", "color-contrast:", "html-has-lang:", "link-name:", "list:", "tabindex:"),
    'label: <input class="form-control" value="" type="text" name="devices',
)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where scripts and styles stay that take long to be made."""
    return str(tmp_path_factory.mktemp("compressed"))


@pytest.fixture
def url(dashboard: Dashboard, compressed: str) -> Iterator[str]:
    styled = {
        "COMPRESS_ROOT": compressed,
        "STATICFILES_DIRS": [
            *settings.STATICFILES_DIRS,
            *theme_settings.get_theme_static_dirs(
                settings.AVAILABLE_THEMES, settings.THEME_COLLECTION_DIR, settings.ROOT_PATH
            ),
        ],
        "COMPRESS_ENABLED": True,
        "COMPRESS_PRECOMPILERS": (("text/scss", "horizon.utils.scss_filter.ScssFilter"),),
    }
    with override_settings(**styled):
        server = wsgi.Server(("127.0.0.1", 0), StaticFilesHandler(get_wsgi_application()))
        server.prepare()
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield f"http://127.0.0.1:{server.bind_addr[1]}"
        server.stop()
        thread.join()


@pytest.fixture
def browser(url: str, tmp_path: pathlib.Path) -> Iterator[Browser]:
    one = Browser(tmp_path / "profile")
    one.reset(url)
    yield one
    one.driver.quit()


def test_a_device_is_disabled_in_a_dialog(
    site: Site, url: str, browser: Browser, tmp_path: pathlib.Path
) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abc"))
    wait = WebDriverWait(browser.driver, PATIENCE)
    for name in ("accelerators", "accelerator_devices"):
        browser.driver.get(f"{url}/admin/{name}/")
        browser.photograph(tmp_path / f"{name}.png")
    browser.driver.find_element(By.LINK_TEXT, "Disable").click()
    reason = wait.until(conditions.element_to_be_clickable((By.NAME, "reason")))
    reason.send_keys("its fan is loud")
    browser.photograph(tmp_path / "dialog.png")
    browser.find(".modal-footer [type=submit]").click()
    wait.until(conditions.text_to_be_present_in_element((By.ID, "content_body"), "fan is loud"))
    browser.photograph(tmp_path / "device.png")
    assert severe(browser) == []


def test_pages_have_no_grave_fault_and_fit_a_narrow_window(
    site: Site, url: str, browser: Browser
) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abc"))
    groups = [{"resources:FPGA": "1"}]
    for name in ("one", "two"):
        site.call("POST", "/device_profiles", [{"name": name, "groups": groups}])
    (first, *_) = site.call("GET", "/devices")["devices"]
    for page in (*PAGES, f"{DEVICES}device/{first['uuid']}/"):
        browser.driver.get(url + page)
        found = browser.grave_faults()
        assert [each for each in found if not each.startswith(OF_HORIZON)] == [], page
        browser.resize(NARROW)
        assert not browser.is_wider_than_its_window(), page
        browser.resize(WIDE)
    assert severe(browser) == []


@pytest.mark.makes_up_rows
def test_pictures_of_the_documentation(
    site: Site, enforcer: Enforcer, url: str, browser: Browser, tmp_path: pathlib.Path
) -> None:
    projects = shown_fleet.PROJECTS
    shown_fleet.make([callers.admin(enforcer, project_id=each) for each in projects])
    folder = pathlib.Path(os.environ.get("CYBORG_TEST_PICTURES", tmp_path))
    browser.resize(1100, 620)
    for name, page, shown in (
        ("dashboard-overview", "/admin/accelerators/", "gpu-1.example"),
        ("dashboard-devices", DEVICES, "0000:19:00.0"),
    ):
        browser.driver.get(url + page)
        browser.photograph(folder / f"{name}.png")
        assert shown in browser.find("#content_body").text
    assert severe(browser) == []


def severe(browser: Browser) -> list[str]:
    """What the console calls an error."""
    logged = browser.driver.get_log("browser")
    return [each["message"] for each in logged if each["level"] == "SEVERE"]
