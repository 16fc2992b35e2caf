# SPDX-License-Identifier: Apache-2.0
"""Pages with their style and scripts, in a browser."""

from __future__ import annotations

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
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as conditions
from selenium.webdriver.support.wait import WebDriverWait

from cyborg.tests import hosts
from cyborg.tests.service import PATIENCE, Site
from cyborg_dashboard.tests.conftest import Dashboard

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="it needs chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--window-size=1280,900",
)


@pytest.fixture
def url(dashboard: Dashboard, tmp_path: pathlib.Path) -> Iterator[str]:
    styled = {
        "COMPRESS_ROOT": str(tmp_path),
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
def chromium(tmp_path: pathlib.Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    one = webdriver.Chrome(options, service)
    yield one
    one.quit()


def test_a_device_is_disabled_in_a_dialog(
    site: Site, url: str, chromium: webdriver.Chrome, tmp_path: pathlib.Path
) -> None:
    hosts.apply(*(hosts.card(letter) for letter in "abc"))
    wait = WebDriverWait(chromium, PATIENCE)
    for name in ("accelerators", "accelerator_devices"):
        chromium.get(f"{url}/admin/{name}/")
        chromium.save_screenshot(str(tmp_path / f"{name}.png"))
    chromium.find_element(By.LINK_TEXT, "Disable").click()
    reason = wait.until(conditions.element_to_be_clickable((By.NAME, "reason")))
    reason.send_keys("its fan is loud")
    chromium.save_screenshot(str(tmp_path / "dialog.png"))
    chromium.find_element(By.CSS_SELECTOR, ".modal-footer [type=submit]").click()
    wait.until(conditions.text_to_be_present_in_element((By.ID, "content_body"), "fan is loud"))
    chromium.save_screenshot(str(tmp_path / "device.png"))
    assert [each for each in chromium.get_log("browser") if each["level"] == "SEVERE"] == []
