# SPDX-License-Identifier: Apache-2.0
"""The page's files in a real Prometheus that reads Cyborg: configuration, alerts, dashboard."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import yaml

from cyborg.tests import one_service, servers
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import TIMEOUT, Instance, Site, wait_for

pytestmark = pytest.mark.slow

DOCUMENTATION = servers.REPOSITORY / "doc"
CONFIGURATION = DOCUMENTATION / "prometheus.yml"
RULES = DOCUMENTATION / "alert_rules.yaml"
DASHBOARD = DOCUMENTATION / "grafana_dashboard.json"

#: Panels of what does not happen there, or that the device lacks.
EMPTY = {
    "Messages that were refused",
    "Requests to other services that fail",
    "The ten hottest devices",
    "Work that has to be tried again",
}

#: Of series a minute apart, when Prometheus looks at what alerts they raise.
AT = "40m"
ZERO, ONE, STEADY, RISING = "0x40", "1x40", "5x40", "0+60x40"
UP = 'up{job="cyborg",instance="i"}'
BINDS = 'cyborg_bind_duration_seconds_count{outcome="%s"}'
BUCKET = 'cyborg_bind_duration_seconds_bucket{outcome="bound",le="%s"}'
WORK = 'cyborg_work_%s{kind="bind",instance="i"}'
PEER = 'cyborg_client_request_duration_seconds_count{service="placement",status="%s"}'
HANDLES = 'cyborg_attach_handles{resource_class="FPGA",state="%s"}'
DEVICES = 'cyborg_devices{type="FPGA",state="%s"}'
AGENT = 'cyborg_agent_last_timestamp_seconds{instance="i",event="%s"}'
REFUSED = 'cyborg_messages_refused_total{method="report",reason="forged"}'
REPORTS = 'cyborg_report_duration_seconds_count{outcome="%s"}'
DRIVER = 'cyborg_agent_driver_failing{instance="i",driver="d"}'


@dataclass(frozen=True, slots=True)
class Case:
    """Series that raise an alert with these labels, and some that raise none."""

    alert: str
    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


CASES = (
    Case("CyborgProcessDown", {UP: ZERO}, {UP: ONE}, {"job": "cyborg", "instance": "i"}),
    Case(
        "CyborgDatabaseUnreachable",
        {'cyborg_database_up{instance="i"}': ZERO},
        {'cyborg_database_up{instance="i"}': ONE},
        {"instance": "i"},
    ),
    Case(
        "CyborgWorkStuck",
        {WORK % "oldest_seconds": RISING, WORK % "attempts": ONE},
        {WORK % "oldest_seconds": "590x40", WORK % "attempts": STEADY},
        {"kind": "bind"},
    ),
    Case(
        "CyborgWorkStuck",
        {WORK % "oldest_seconds": ONE, WORK % "attempts": "0+2x40"},
        {WORK % "oldest_seconds": ONE, WORK % "attempts": "30x40"},
        {"kind": "bind"},
    ),
    Case(
        "CyborgBindsFail",
        {BINDS % "failed": "0+2x40", BINDS % "bound": "0+10x40"},
        {BINDS % "failed": "0+1x40", BINDS % "bound": "0+10x40"},
    ),
    Case(
        "CyborgBindsSlow",
        {BUCKET % "30.0": "0+9x40", BUCKET % "60.0": "0+10x40", BUCKET % "+Inf": "0+10x40"},
        {BUCKET % "30.0": "0+96x40", BUCKET % "60.0": "0+100x40", BUCKET % "+Inf": "0+100x40"},
    ),
    Case(
        "CyborgApiFails",
        {'cyborg_api_requests_total{status="503"}': RISING},
        {'cyborg_api_requests_total{status="503"}': STEADY},
    ),
    Case(
        "CyborgPeerFails",
        {PEER % "none": RISING},
        {PEER % "4xx": RISING, PEER % "5xx": STEADY},
        {"service": "placement"},
    ),
    Case(
        "CyborgAcceleratorsExhausted",
        {HANDLES % "free": ZERO, HANDLES % "in_use": STEADY},
        {HANDLES % "free": ONE, HANDLES % "in_use": ZERO},
        {"resource_class": "FPGA"},
    ),
    Case(
        "CyborgDeviceUnhealthy",
        {DEVICES % "unhealthy": ONE},
        {DEVICES % "unhealthy": ZERO, DEVICES % "enabled": ONE},
        {"type": "FPGA"},
    ),
    Case(
        "CyborgDeviceMissing",
        {DEVICES % "missing": ONE},
        {DEVICES % "missing": ZERO, DEVICES % "enabled": ONE},
        {"type": "FPGA"},
    ),
    Case(
        "CyborgHandlesUnclean",
        {HANDLES % "clean_failed": ONE},
        {HANDLES % "clean_failed": ZERO, HANDLES % "cleaning": ONE},
        {"resource_class": "FPGA"},
    ),
    Case(
        "CyborgProvidersWithheld",
        {"cyborg_resource_providers_withheld": ONE},
        {"cyborg_resource_providers_withheld": ZERO},
    ),
    Case(
        "CyborgInstancesHeldBack",
        {"cyborg_instances_held_back": ONE},
        {"cyborg_instances_held_back": "0x37 1x3"},
    ),
    Case("CyborgMessagesRefused", {REFUSED: RISING}, {REFUSED: STEADY}, {"reason": "forged"}),
    Case(
        "CyborgReportsFail",
        {REPORTS % "refused": RISING},
        {REPORTS % "refused": STEADY, REPORTS % "applied": RISING},
        {"outcome": "refused"},
    ),
    Case(
        "CyborgHostDown",
        {'cyborg_hosts{state="down"}': ONE},
        {'cyborg_hosts{state="down"}': ZERO, 'cyborg_hosts{state="up"}': ONE},
    ),
    Case(
        "CyborgAgentUnheard",
        {AGENT % "delivery": "60x40", AGENT % "pass": RISING},
        {AGENT % "delivery": RISING, AGENT % "pass": RISING},
        {"instance": "i", "event": "delivery"},
    ),
    Case(
        "CyborgAgentUnheard",
        {AGENT % "pass": RISING},
        {AGENT % "pass": "_x39 2340 2400"},
        {"instance": "i", "event": "pass"},
    ),
    Case("CyborgDriverFails", {DRIVER: ONE}, {DRIVER: ZERO}, {"instance": "i", "driver": "d"}),
    Case(
        "CyborgNotificationsWait",
        {"cyborg_notifications_oldest_seconds": "301x40"},
        {"cyborg_notifications_oldest_seconds": "299x40"},
    ),
)

#: Instead of the page's 15 seconds and the default of one minute, so that nobody waits.
OFTEN = "500ms"


def program(name: str) -> str:
    """The path of a command of Debian's package."""
    return shutil.which(name) or servers.end_without(
        f"{name} is not installed; run: apt-get install --no-install-recommends prometheus"
    )


def promtool(*arguments: object) -> None:
    command = [program("promtool"), *map(str, arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


class Server:
    """A Prometheus with the page's files that reads these targets often."""

    def __init__(self, folder: pathlib.Path, *targets: str) -> None:
        self._port = free_port()
        self._folder = folder
        shutil.copy(RULES, folder)
        given = yaml.safe_load(CONFIGURATION.read_text())
        (job,) = given["scrape_configs"]
        job |= {"scrape_interval": OFTEN, "scrape_timeout": OFTEN}
        job["static_configs"] = [{"targets": list(targets)}]
        given["global"] = {"evaluation_interval": OFTEN}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(given))

    @contextlib.contextmanager
    def serve(self) -> Iterator[None]:
        command = [
            program("prometheus"),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        with (
            (self._folder / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                wait_for("Prometheus", lambda: self._is_ready(process))
                yield
            finally:
                process.kill()

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, (self._folder / "log").read_text()
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"http://127.0.0.1:{self._port}/-/ready", timeout=TIMEOUT).ok
        return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}"
        answer = requests.get(url, params=parameters, timeout=TIMEOUT).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    def values(self, query: str) -> list[float]:
        """The numbers that a query returns."""
        found = [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]
        return [value for value in found if not math.isnan(value)]

    def alerts(self) -> dict[str, str]:
        """The state of each alert that is raised, by its name."""
        found = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["state"] for each in found}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> Iterator[tuple[str, str]]:
    """Each panel's title and its queries, as Grafana would send them."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "1h")


def test_prometheus_takes_the_pages_files() -> None:
    promtool("check", "config", CONFIGURATION)
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def judged(case: Case) -> list[dict[str, Any]]:
    """Both halves of a case as promtool reads them."""
    (summary,) = (
        rule["annotations"]["summary"] for rule in rules() if rule["alert"] == case.alert
    )
    for name, value in case.labels.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    raised = {"exp_labels": case.labels, "exp_annotations": {"summary": summary}}
    return [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": text} for name, text in given.items()],
            "alert_rule_test": [
                {"eval_time": AT, "alertname": case.alert, "exp_alerts": expected}
            ],
        }
        for given, expected in ((case.fires, [raised]), (case.quiet, []))
    ]


def test_each_alert_is_raised_when_it_should_be_and_not_otherwise(tmp_path: pathlib.Path) -> None:
    assert {case.alert for case in CASES} == {rule["alert"] for rule in rules()}
    tests = [each for case in CASES for each in judged(case)]
    path = tmp_path / "cases.yaml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    promtool("test", "rules", path)


def test_prometheus_reads_what_the_dashboard_shows(tmp_path: pathlib.Path) -> None:
    port, control = free_port(), tmp_path / "control"
    options: dict[str, dict[str, object]] = {
        "metrics": {"port": port, "database_interval": 0},
        "agent": {"discovery_interval": 1},
        "fake_driver": {"host_step": True, "host_step_control": control},
    }
    site = Site(tmp_path / "state", one_service.ini(options))
    server = Server(tmp_path, f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}")
    with site.serve(), server.serve():
        wait_for("a look at both", lambda: sorted(server.values("up")) == [0, 1])
        site.prepare()
        bind_one(site, "Bound")
        control.write_text(json.dumps({"prepare": {"fail": "out of order"}}))
        bind_one(site, "BindFailed")
        control.write_text(json.dumps({"unhealthy": {"0": "too hot"}}))
        wait_for("the alert", lambda: server.alerts().get("CyborgDeviceUnhealthy") == "firing")
        assert server.alerts()["CyborgProcessDown"] == "pending"
        for title, query in queries():
            if title in EMPTY:
                server.values(query)
            else:
                # A rate needs requests between two looks.
                wait_for(query, functools.partial(asked_meanwhile, site, server, query))
        # They are the first ones of the process.
        for outcome in ("bound", "failed"):
            query = f'increase(cyborg_bind_duration_seconds_count{{outcome="{outcome}"}}[1h]) > 0'
            wait_for(outcome, functools.partial(server.values, query))
        (group,) = server.ask("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
        assert [rule["name"] for rule in group["rules"]] == [rule["alert"] for rule in rules()]


def asked_meanwhile(site: Site, server: Server, query: str) -> list[float]:
    """The values of a query, after one more request."""
    site.arqs()
    return server.values(query)


def bind_one(site: Site, state: str) -> None:
    """Ask for an instance's accelerators and see it end in that state."""
    instance = Instance(site)
    instance.bind()
    # An instance with a failed request is answered with the failure alone.
    ours = set(instance.arqs)
    wait_for(
        state,
        lambda: {arq["state"] for arq in site.arqs() if arq["uuid"] in ours} == {state},
    )
