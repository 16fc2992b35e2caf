# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin for CI: it names the tests that failed, were run again and passed, and says why.

``--reruns 1`` of pytest-rerunfailures runs them again. Their names are in the JUnit report, where
``tools/junit_summary.py`` reads them.
"""

from __future__ import annotations

import pytest
from _pytest import junitxml


class FlakyTests:
    """The tests that failed and then passed."""

    def __init__(self) -> None:
        self._rerun: dict[str, pytest.TestReport] = {}
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure that is tried again, and one that is final."""
        outcome: str = report.outcome
        if outcome == "rerun":
            self._rerun[report.nodeid] = report
        elif report.failed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the names into the JUnit report."""
        report = session.config.stash.get(junitxml.xml_key, None)
        for name in self._flaky():
            if report is not None:
                report.add_global_property("flaky", name)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what each of them failed of."""
        for name in self._flaky():
            terminalreporter.section(f"failed at first: {name}")
            terminalreporter.line(str(self._rerun[name].longrepr))

    def _flaky(self) -> list[str]:
        return [name for name in self._rerun if name not in self._failed]


def pytest_configure(config: pytest.Config) -> None:
    """Watch in the process that collects the reports."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakyTests())
