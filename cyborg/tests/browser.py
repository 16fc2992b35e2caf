# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that looks at the status page as a person does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from cyborg.tests import servers

#: Seconds for anything to be shown; it takes fractions of one.
PATIENCE = 60
WIDE, NARROW = 1280, 400
_HEIGHT = 900
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars"),
)
_IS_SHOWN = """
    const content = document.getElementById("content");
    return content.getAttribute("aria-busy") === "false" && content.children.length > 0;
"""
_STOPPED_CLOCK = """
    const waiting = new Map();
    let last = 0;
    window.setTimeout = (call) => { waiting.set(++last, call); return last; };
    window.clearTimeout = (number) => waiting.delete(number);
    window.letPass = () => {
        const due = [...waiting.values()];
        waiting.clear();
        due.forEach((call) => call());
    };
"""
#: Violations of the rules of accessibility that keep somebody from reading or using the page.
_GRAVE = """
    const done = arguments[arguments.length - 1];
    const rules = arguments[0].length ? { runOnly: arguments[0] } : {};
    axe.run(document, rules).then((found) => done(found.violations
        .filter((each) => ["serious", "critical"].includes(each.impact))
        .map((each) => each.id + ": " + each.nodes.map((node) => node.html).join(" "))));
"""


class Browser:
    """One window."""

    def __init__(self, profile: pathlib.Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = _program("chromium")
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(
            options, webdriver.ChromeService(_program("chromedriver"))
        )
        self.driver.set_script_timeout(PATIENCE)
        self._url = ""

    def reset(self, url: str) -> None:
        """Forget what was before, and look at the API of that address from now on."""
        self._url = url
        self.driver.get("about:blank")
        self.identify()
        self.resize(WIDE)
        self.paint("light")
        self.errors()
        self.driver.get_log("performance")

    def identify(self, **headers: str) -> None:
        """Send headers with each request, such as the token of a user."""
        self._command("Network.enable")
        self._command("Network.setExtraHTTPHeaders", headers=headers)

    def resize(self, width: int, height: int = _HEIGHT) -> None:
        """Have a window of that size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._command("Emulation.setDeviceMetricsOverride", **size)

    def paint(self, scheme: str) -> None:
        """Be a person who likes pages light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._command("Emulation.setEmulatedMedia", features=[feature])

    def open(self, view: str = "") -> str:
        """Go to a view, and give its text when it is shown."""
        self.driver.get("about:blank")
        self.driver.get(f"{self._url}/#/{view}")
        return self.shown()

    def shown(self) -> str:
        """The text of the view, when it is shown."""
        WebDriverWait(self.driver, PATIENCE, 0.02).until(
            lambda driver: driver.execute_script(_IS_SHOWN)
        )
        return self.find("main").text

    def shown_with(self, text: str) -> None:
        """Wait until the view has that text."""
        WebDriverWait(self.driver, PATIENCE, 0.02).until(lambda _driver: text in self.shown())

    def read_again(self) -> None:
        """Have the page read everything once more; it is paused, before and after."""
        for _ in range(2 if self.find("#pause").get_attribute("aria-pressed") == "true" else 3):
            self.find("#pause").click()
        self.shown()

    def press(self, key: str) -> None:
        """Press a key, wherever the focus is."""
        ActionChains(self.driver).send_keys(key).perform()

    @contextlib.contextmanager
    def stopped_clock(self) -> Iterator[None]:
        """While the block runs, pages that are opened wait for :meth:`let_pass`."""
        name = "Page.addScriptToEvaluateOnNewDocument"
        added = self._command(name, source=_STOPPED_CLOCK)["identifier"]
        yield
        self._command("Page.removeScriptToEvaluateOnNewDocument", identifier=added)

    def let_pass(self) -> None:
        """Let all the time pass for which the page waits."""
        self.run("letPass()")

    def hide(self, *, hidden: bool) -> None:
        """Look at another tab, or back at this one."""
        value = "true" if hidden else "false"
        self.run(
            f"Object.defineProperty(document, 'hidden', {{value: {value}, configurable: true}});"
            "document.dispatchEvent(new Event('visibilitychange'));"
        )

    def find(self, selector: str) -> WebElement:
        """The first element that the selector names."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def every(self, selector: str) -> list[WebElement]:
        """All of them."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script)

    def errors(self) -> list[str]:
        """What the console has said since it was asked last."""
        return [each["message"] for each in self.driver.get_log("browser")]

    def asked(self) -> list[str]:
        """The paths that were requested since it was asked last; whole URLs of others."""
        entries = self.driver.get_log("performance")
        events = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [each for each in events if each["method"] == "Network.requestWillBeSent"]
        return [each["params"]["request"]["url"].removeprefix(self._url) for each in sent]

    def grave_faults(self, *rules: str) -> list[str]:
        """What axe-core finds serious or critical in the view, by all its rules or by these."""
        spec = importlib.util.find_spec("axe_core_python")
        assert spec is not None
        assert spec.origin is not None
        # The policy of the page permits no script of others; the browser's owner may do all.
        self.run(pathlib.Path(spec.origin).with_name("axe.min.js").read_text())
        found: list[str] = self.driver.execute_async_script(_GRAVE, rules)
        return found

    def is_wider_than_its_window(self) -> bool:
        """True if somebody would have to scroll to the side."""
        root = "document.documentElement"
        return bool(self.run(f"return {root}.scrollWidth > {root}.clientWidth"))

    def photograph(self, path: pathlib.Path) -> None:
        """Write a picture of the window."""
        self.driver.save_screenshot(str(path))

    def _command(self, name: str, **values: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.driver.execute_cdp_cmd(name, values)
        return found


def _program(name: str) -> str:
    return shutil.which(name) or servers.end_without(
        f"{name} is not installed; run: apt-get install chromium chromium-driver"
    )
