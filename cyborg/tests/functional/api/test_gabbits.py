# SPDX-License-Identifier: Apache-2.0
"""The REST API by stories in YAML, over the real application, pipeline and database.

Each file is one story on a database of its own with one host and two conductors, the second of
which was killed ten minutes ago. A request with the header
``X-After-Conductor`` is served after a conductor has done all work that is due.
"""

from __future__ import annotations

import pathlib
import unittest
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest
import yaml
from gabbi import handlers, suitemaker
from oslo_config import cfg

from cyborg import db, liveness
from cyborg.api import app
from cyborg.db import models
from cyborg.tests import engine, hosts

STORIES = sorted(pathlib.Path(__file__).with_name("gabbits").glob("*.yaml"))

#: Cards of the host in a story besides the two that it has in all.
CARDS = {
    "programming": (
        hosts.card("c", program_mode="dynamic", function="aes-128", function_vendor="FAKE"),
        hosts.card("d", program_mode="single-program", function="", function_vendor="FAKE"),
    )
}
#: Stories in which binds wait for a conductor: the first card can be programmed.
WAITING = {"accelerator-requests", "regular"}

pytestmark = [pytest.mark.usefixtures("database"), pytest.mark.every_database]


class AfterConductor:
    """The application with a conductor that runs when a request says so."""

    def __init__(self, application: WSGIApplication, conf: cfg.ConfigOpts) -> None:
        self._application = application
        self._conf = conf

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if "HTTP_X_AFTER_CONDUCTOR" in environ:
            engine.drain(self._conf)
        return self._application(environ, start_response)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_story(story: pathlib.Path, conf: cfg.ConfigOpts) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("answer_timeout", 1, group="programming")
    conf.set_override("bind_wait", 0, group="api")
    # By this name the stories ask for it.
    conf.set_override("host", "api.example")
    hosts.apply(
        hosts.card("a", program_mode="dynamic" if story.stem in WAITING else None),
        hosts.card("b", resource_class="PGPU", traits=()),
        *CARDS.get(story.stem, ()),
        not_offered=2,
        not_offered_reasons=["0000:3b:00.0 and 1 more 10de:2330: no enabled driver claims it"],
    )
    liveness.record_heartbeat(models.new_uuid(), "controller-1/1", "controller-1")
    liveness.record_heartbeat(models.new_uuid(), "controller-2/1", "controller-2")
    with db.writer() as session:
        killed = models.Conductor.host == "controller-2"
        db.update(session, models.Conductor, killed, last_seen_ms=db.now_ms() - 600_000)
    application = AfterConductor(app.load(conf), conf)
    suite = suitemaker.test_suite_from_dict(
        unittest.TestLoader(),
        story.stem,
        yaml.safe_load(story.read_text()),
        str(story.parent),
        "api.example",
        None,
        None,
        lambda: application,
        handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
    )
    result = unittest.TestResult()
    suite.run(result)
    failed = [f"{step}\n{text}" for step, text in [*result.failures, *result.errors]]
    assert not failed, "\n".join(failed)
    assert result.testsRun == suite.countTestCases() > 0
    assert not result.skipped
