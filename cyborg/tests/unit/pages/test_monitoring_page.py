# SPDX-License-Identifier: Apache-2.0
"""The page on monitoring names the metrics and events that there are, and no others."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import yaml

from cyborg import metrics
from cyborg.conductor import gauges
from cyborg.tests import listening

DOCUMENTATION = pathlib.Path(__file__).parents[4] / "doc"
PAGE = (DOCUMENTATION / "source" / "admin" / "monitoring.rst").read_text()
RULES = DOCUMENTATION / "alert_rules.yaml"
DASHBOARD = DOCUMENTATION / "grafana_dashboard.json"

#: Labels that a query may group by and that no metric of ours declares.
_OF_PROMETHEUS = {"instance", "le"}
#: Metrics that Prometheus makes itself, with some of their labels.
_ITS_OWN = {"up": ("job",), "ALERTS": ("alertname", "alertstate")}

_SELECTOR = re.compile(r"\b(cyborg_\w+?|up|ALERTS)(?:_count|_bucket)?(?:{(.*?)})?(?![\w{])")
_ENTRY = re.compile(r"^(``[^()\n]+``)(?: \((.+)\))?\n    \S", re.MULTILINE)


def entries() -> dict[str, list[str]]:
    """The words in brackets of each entry of a list, by the names before them."""
    found = {}
    for names, words in _ENTRY.findall(PAGE):
        for name in re.findall(r"``(\S+?)``", names):
            found[name] = re.findall(r"\w+", words)
    return found


def shown() -> dict[str, tuple[str, ...]]:
    """The labels of each metric, by the name under which Prometheus finds it."""
    found = {}
    collectors: list[Any] = list(metrics.REGISTRY._collector_to_names)
    for metric in collectors:
        (family,) = metric.describe()
        suffix = "_total" if family.type == "counter" else ""
        found[family.name + suffix] = metric._labelnames
    return found | {name: tuple(labels) for name, (_, labels) in gauges.METRICS.items()}


def test_every_metric_is_described_with_its_labels() -> None:
    described = {name: words for name, words in entries().items() if name.startswith("cyborg_")}
    assert described == {name: list(labels) for name, labels in shown().items()}


def test_every_event_is_described_with_its_priority() -> None:
    described = {name: words for name, words in entries().items() if "." in name}
    assert described == {event.name: [event.priority] for event in listening.EVENTS}


def check(expression: str) -> set[str]:
    """Check that what a query asks for exists; return the metrics."""
    known, selectors = shown() | _ITS_OWN, _SELECTOR.findall(expression)
    assert selectors, expression
    for name, conditions in selectors:
        assert set(re.findall(r"(\w+)!?=", conditions)) <= set(known[name]), expression
    grouping = re.findall(r" by \((.*?)\)", expression)
    for label in set(re.findall(r"\w+", " ".join(grouping))) - _OF_PROMETHEUS:
        assert all(label in known[name] for name, _conditions in selectors), expression
    return {name for name, _conditions in selectors}


def test_alerts_ask_for_metrics_and_labels_that_exist() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]:
        check(rule["expr"])


def dashboard_panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return panels


def test_the_dashboard_asks_for_metrics_and_labels_that_exist() -> None:
    panels = dashboard_panels()
    assert len({panel["id"] for panel in panels}) == len(panels)
    asked = set()
    for target in (target for panel in panels for target in panel["targets"]):
        asked |= check(target["expr"])
        legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - {"instance"}
        assert all(re.search(rf"\b{label}\b", target["expr"]) for label in legend), target
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    # What wakes somebody up can be looked at.
    assert set().union(*(check(rule["expr"]) for rule in group["rules"])) <= asked


def test_each_panel_says_what_it_shows_of_the_source_that_was_chosen_and_of_now() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in dashboard_panels():
        assert panel["description"].endswith("."), panel
        for each in (panel, *panel["targets"]):
            assert each["datasource"] == source
        if panel["type"] == "stat":
            # Otherwise the last of six hours, in green, whatever it is.
            assert all(target["instant"] for target in panel["targets"])
            assert "thresholds" in panel["fieldConfig"]["defaults"]
