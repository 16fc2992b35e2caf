# SPDX-License-Identifier: Apache-2.0
"""The REST API where YAML does not reach: faults, mounts, middleware, counts of statements."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg
from oslo_middleware import cors

from cyborg import db
from cyborg.api import app
from cyborg.tests import hosts
from cyborg.tests.counted_statements import SqlCounter

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]
Call = Callable[..., webob.Response]

pytestmark = pytest.mark.usefixtures("database")

PROFILES = "/v2/device_profiles"
PROFILE = [{"name": "fpga", "groups": [{"resources:FPGA": "2"}]}]


@pytest.fixture
def call(call: Call) -> Call:
    """By itself the request has no microversion."""
    return functools.partial(call, version=None)


def sentence(answer: webob.Response) -> str:
    """The sentence of an application error, whose form is checked with it."""
    assert answer.content_type == "application/json"
    if "errors" in answer.json:
        # The form of these is checked in test_regular.
        return str(answer.json["errors"][0]["detail"])
    assert list(answer.json) == ["error_message"]
    fault = json.loads(answer.json["error_message"])
    assert list(fault) == ["faultcode", "faultstring", "debuginfo"]
    assert fault["faultcode"] == ("Client" if answer.status_int < 500 else "Server")
    assert fault["debuginfo"] is None
    assert isinstance(fault["faultstring"], str)
    return fault["faultstring"]


def test_the_budget_of_a_create_and_of_a_list(call, count_sql) -> None:
    def create(name: str, amount: int) -> None:
        profile = {"name": name, "groups": [{"resources:FPGA": str(amount)}]}
        assert call("POST", "/v2/device_profiles", [profile]).status_int == 201
        with count_sql() as counter:
            made = call("POST", "/v2/accelerator_requests", {"device_profile_name": name})
        assert len(made.json["arqs"]) == amount
        assert len(counter.statements) <= 4

    for letters in ("a", "abcde"):
        hosts.apply(*map(hosts.card, letters))
        for letter in letters[-4:]:
            create(letter, 1)
        for path, selects in (
            ("/v2/devices?type=FPGA", 1),
            ("/v2/deployables", 2),
            ("/v2/device_profiles?name=a,b,c,d,e", 1),
            ("/v2/accelerator_requests", 1),
        ):
            with count_sql() as counter:
                (found,) = call("GET", path).json.values()
            assert len(found) == len(letters), path
            assert len(counter.statements) == len(counter.matching("SELECT")) == selects, path
    create("many", 50)


class Endless:
    """A body in chunks that never ends, and counts what is read of it."""

    taken = 0

    def read(self, size: int) -> bytes:
        part = b"[" * min(size, 8192)
        self.taken += len(part)
        return part


@pytest.mark.parametrize(
    ("head", "most"),
    [({"CONTENT_LENGTH": "10000000"}, 0), ({"HTTP_TRANSFER_ENCODING": "chunked"}, 114688 + 1)],
    ids=["by its length", "in chunks"],
)
def test_a_large_body_is_read_no_further_than_the_limit(call, count_sql, head, most) -> None:
    head["CONTENT_TYPE"] = "application/json"
    body = Endless()
    with count_sql() as counter:
        answer = call("POST", "/v2/device_profiles", **head, **{"wsgi.input": body})
    assert answer.status_int == 413
    assert "at most 114688 bytes" in sentence(answer)
    assert (body.taken, counter.statements) == (most, [])


NAME = "n" * 300


@pytest.mark.parametrize(
    ("method", "url", "body", "code"),
    [
        ("GET", f"/v2/devices/{NAME}", None, 404),
        ("GET", f"/v2/devices?hostname={NAME}", None, 400),
        ("GET", f"/v2/devices?{NAME}=1", None, 400),
        ("GET", f"/v2/devices?filters.field={NAME}", None, 400),
        ("GET", f"/v2/devices?filters.field=limit&filters.value={'9' * 300}", None, 400),
        ("GET", f"/v2/deployables/{NAME}", None, 400),
        ("GET", f"/v2/deployables?filters.field=name&filters.value={NAME}", None, 400),
        ("GET", f"/v2/device_profiles?name=a,{NAME}", None, 400),
        ("GET", f"/v2/device_profiles/{NAME}", None, 400),
        ("DELETE", f"/v2/device_profiles/{NAME}", None, 400),
        ("GET", f"/v2/accelerator_requests/{NAME}", None, 400),
        ("GET", f"/v2/accelerator_requests?instance={NAME}", None, 400),
        ("DELETE", f"/v2/accelerator_requests/{NAME}", None, 404),
        ("POST", "/v2/accelerator_requests", {"device_profile_name": NAME}, 400),
        ("POST", "/v2/device_profiles", [{"name": NAME, "groups": [{}]}], 400),
        ("POST", "/v2/device_profiles", [{"name": "a", "groups": [{}], "uuid": NAME}], 400),
        ("POST", "/v2/device_profiles", [{"name": "a", "groups": [{}], NAME: 1}], 400),
        ("POST", "/v2/device_profiles", b"[" * 100_000, 400),
        ("POST", "/v2/device_profiles", b'"\\u0000"', 400),
        ("POST", "/v2/device_profiles", b"null", 400),
        ("POST", "/v2/accelerator_requests", b'{"device_profile_name": "\\ud800"}', 400),
        ("POST", "/v2/accelerator_requests", {"device_profile_name": ["x"]}, 400),
        ("POST", "/v2/accelerator_requests", [], 400),
        ("PATCH", "/v2/accelerator_requests", {}, 400),
        ("GET", "/v2/device_profiles/%00", None, 400),
        ("GET", "/v2/device_profiles?name=%ff", None, 400),
    ],
)
def test_bad_input_is_the_clients_fault_and_reaches_no_table(
    call: Call, count_sql: CountSql, method: str, url: str, body: Any, code: int
) -> None:
    with count_sql() as counter:
        answer = call(method, url, body, version="2.3")
    assert answer.status_int == code
    assert 0 < len(sentence(answer)) < 1000
    assert counter.statements == []


@pytest.mark.parametrize(
    ("method", "path", "environ", "code", "said"),
    [
        ("POST", PROFILES, {"CONTENT_LENGTH": "-1"}, 400, "Content-Length"),
        ("POST", PROFILES, {"CONTENT_LENGTH": "x"}, 400, "Content-Length"),
        ("POST", PROFILES, {"CONTENT_LENGTH": "9" * 30}, 400, "Content-Length"),
        ("POST", PROFILES, {"CONTENT_TYPE": "multipart/form-data"}, 415, "multipart/form-data"),
        ("GET", "/", {"QUERY_STRING": "type=\xff"}, 400, "UTF-8"),
        ("GET", "/v2/devices", {"QUERY_STRING": "type=\xff"}, 400, "UTF-8"),
    ],
)
def test_what_no_client_should_send(call, method, path, environ, code, said) -> None:
    # A form could name another method.
    body = b"_method=DELETE" if "CONTENT_TYPE" in environ else None
    answer = call(method, path, body, **environ)
    assert (answer.status_int, said in sentence(answer)) == (code, True)


def test_what_nobody_foresaw_is_told_to_the_log_only(call, caplog) -> None:
    with db.writer() as session:
        session.execute(sa.text("DROP TABLE device_profile_projects"))
        session.execute(sa.text("DROP TABLE device_profiles"))
    for version in ("2.0", "2.4"):
        caplog.clear()
        answer = call("GET", PROFILES, version=version)
        request_id = answer.headers["x-openstack-request-id"]
        assert answer.status_int == 500
        assert request_id in sentence(answer)
        assert "device_profiles" not in answer.text
        assert "SELECT" not in answer.text
        (record,) = (record for record in caplog.records if record.name == "cyborg.api.faults")
        assert request_id in record.getMessage()
        assert record.exc_info


@pytest.mark.makes_up_rows
def test_a_database_that_is_down_is_not_the_end(call, conf) -> None:
    conf.set_override("connection", "mysql+pymysql://u:p@127.0.0.1:1/none", group="database")
    db.configure(conf)
    for version in ("2.0", "2.4"):
        answer = call("GET", "/v2/devices", version=version)
        assert answer.status_int == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert "database cannot be reached" in sentence(answer)
        assert "127.0.0.1:1" not in answer.text


def hrefs(call: Call, **environ: str) -> set[str]:
    """The beginning of every link of a version document and a list."""
    documents = [call("GET", path, **environ).json for path in ("/", "/v2", "/v2/devices")]
    links = [link["href"] for link in documents[0]["versions"][0]["links"]]
    links += [link["href"] for link in documents[1]["links"]]
    links += [link["href"] for link in documents[2]["devices"][0]["links"]]
    return {link.partition("/v2")[0] for link in links}


def test_links_follow_the_mount_the_proxy_and_the_option(call: Call, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card("a"))
    assert hrefs(call) == {"http://localhost"}
    assert hrefs(call, SCRIPT_NAME="/accelerator") == {"http://localhost/accelerator"}
    assert hrefs(call, HTTP_HOST="192.0.2.8:81") == {"http://192.0.2.8:81"}
    proxied = {
        "HTTP_X_FORWARDED_PROTO": "https",
        "HTTP_X_FORWARDED_HOST": "192.0.2.9",
        "HTTP_X_FORWARDED_PREFIX": "/acc",
    }
    assert hrefs(call, **proxied) == {"http://localhost"}
    conf.set_override("enable_proxy_headers_parsing", True, group="oslo_middleware")
    assert hrefs(call, **proxied) == {"https://192.0.2.9/acc"}
    conf.set_override("public_endpoint", "https://public/accelerator/", group="api")
    assert hrefs(call, **proxied) == {"https://public/accelerator"}


@pytest.mark.every_database
def test_of_many_who_make_one_profile_at_once_one_does(call: Call) -> None:
    with futures.ThreadPoolExecutor(8) as pool:
        made = [pool.submit(call, "POST", "/v2/device_profiles", PROFILE) for _ in range(16)]
    answers = [future.result() for future in made]
    assert sorted(answer.status_int for answer in answers) == [201] + [409] * 15
    refused = next(answer for answer in answers if answer.status_int == 409)
    assert sentence(refused) == "A device_profile with name fpga already exists."


def test_browsers_of_permitted_origins_may_call(conf: cfg.ConfigOpts) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.register_opts(cors.CORS_OPTS, group="cors")
    conf.set_override("allowed_origin", ["https://dashboard"], group="cors")
    application = app.load(conf)
    request = webob.Request.blank("/v2/devices", headers={"Origin": "https://dashboard"})
    answer = request.get_response(application)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://dashboard"
    assert "OpenStack-API-Version" in answer.headers["Access-Control-Expose-Headers"]
