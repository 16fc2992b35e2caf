# SPDX-License-Identifier: Apache-2.0
"""Audit events of requests that change something."""

from __future__ import annotations

import configparser
import logging
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.api import middleware
from cyborg.api.controllers import root
from cyborg.tests.scene import Scene

GROUP = "audit_middleware_notifications"
LOGGER = "cyborg.audit"


@pytest.fixture
def audited(conf: cfg.ConfigOpts) -> None:
    """The API that is started afterwards is audited, and says so in its log."""
    conf.set_override("audit", True, group="api")
    # Registers the options.
    with middleware.building(conf):
        middleware.audit({})(lambda _environ, _start: [])
    conf.set_override("use_oslo_messaging", False, group=GROUP)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    found = [record.args for record in caplog.records if record.name.startswith(LOGGER)]
    return [(each["event_type"], each["payload"]) for each in found if isinstance(each, dict)]


@pytest.mark.usefixtures("audited")
def test_what_changes_something_is_heard_of_before_and_after(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    names = scene.names()
    headers = {"OpenStack-API-Version": "accelerator latest"}
    scene.ask("admin", f"GET /devices/{names['device']}", headers=headers)
    assert events(caplog) == []

    scene.ask("admin", f"POST /hosts/{names['host']}/drain", headers=headers)
    scene.ask("member", f"DELETE /device_profiles/{names['device_profile']}", headers=headers)

    drained, refused = events(caplog)[1], events(caplog)[3]
    assert [event for event, _ in events(caplog)] == [
        "audit.http.request",
        "audit.http.response",
    ] * 2
    assert (drained[1]["action"], drained[1]["outcome"]) == ("disable/drain", "success")
    assert drained[1]["requestPath"].endswith("/hosts/host-1/drain")
    assert (refused[1]["action"], refused[1]["outcome"]) == ("delete", "failure")
    assert refused[1]["reason"]["reasonCode"] == "403"
    assert refused[1]["initiator"]["project_id"]
    token = str(refused[1]["initiator"]["credential"]["token"])
    assert "xxx" in token or "*" in token


def test_the_map_has_every_collection_and_every_action() -> None:
    parser = configparser.ConfigParser()
    parser.read(middleware.SHIPPED_AUDIT_MAP)
    changing = [path for method, path, _ in root.declared() if method != "GET"]
    segments = [path.removeprefix("/v2/").split("/") for path in changing]
    assert {each[0] for each in segments} <= set(parser["path_keywords"])
    actions = {each[2] for each in segments if len(each) > 2}
    assert actions == set(parser["custom_actions"]) - set(parser.defaults())


@pytest.fixture
def without_broker(conf: cfg.ConfigOpts, audited: None) -> None:
    """Events go to a broker that is not there."""
    conf.set_override("use_oslo_messaging", True, group=GROUP)
    conf.set_override("driver", "messagingv2", group=GROUP)
    conf.set_override("transport_url", "rabbit://127.0.0.1:1/", group=GROUP)


@pytest.mark.usefixtures("without_broker")
def test_a_broker_that_is_down_holds_up_no_request(scene: Scene) -> None:
    names = scene.names()
    headers = {"OpenStack-API-Version": "accelerator latest"}
    answer = scene.ask("admin", f"POST /hosts/{names['host']}/drain", headers=headers)
    assert answer.json()["drained"] is True
