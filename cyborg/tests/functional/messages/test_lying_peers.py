# SPDX-License-Identifier: Apache-2.0
"""Each client of another service, and everything that a service can answer instead of the truth.

Every call ends in time and in bounded memory, with an error that its callers know, or as if the
service had not said anything. One table of lies serves all clients.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import resource
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import webob
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import loading as ka_loading
from keystonemiddleware import opts as auth_token_opts
from oslo_config import cfg
from oslo_limit import limit
from oslo_limit import opts as limit_opts

from cyborg import nova, quotas
from cyborg.api import middleware, server
from cyborg.common import errors
from cyborg.common.request_groups import RequestGroup
from cyborg.ironic import api as ironic
from cyborg.kube import accelerators
from cyborg.kube import service as kube_service
from cyborg.kube.cluster import Cluster
from cyborg.peers import answers, clients, glance
from cyborg.placement import client as placement
from cyborg.placement import local, tree
from cyborg.tests import liar as liars
from cyborg.tests.liar import QUICK, SLOW, Liar, Lie
from cyborg.tests.service import PATIENCE, Site

pytestmark = pytest.mark.slow

#: Seconds that a call may take by the options, and what a busy machine may add.
TIMEOUT, SLACK = 1, 15
#: KiB that a call may take of memory at once.
MEMORY = 256 * 1024

UUID = "c0000000-0000-4000-8000-000000000001"
KNOWN = (errors.CyborgError, ka_exc.ClientException)
GROUPS = ("placement", "nova", "glance", "ironic", "kube")
_TOKEN_OPTIONS = {"auth_type": "none", "www_authenticate_uri": "http://keystone"}

Call = Callable[[cfg.ConfigOpts], Any]
_INVENTORY = dataclasses.asdict(tree.Inventory(total=1, reserved=0, max_unit=1))
_PROVIDER = {"uuid": UUID, "name": "n", "parent_provider_uuid": None, "generation": 1}
_STORED = {
    "resource_provider_generation": 1,
    "inventories": {"FPGA": _INVENTORY},
    "traits": ["HW_A"],
}
_IMAGE = {
    "id": UUID,
    "name": "aes",
    "status": "active",
    "size": 9,
    "os_hash_algo": "sha512",
    "os_hash_value": "ab",
    "checksum": "cd",
    "created_at": "2026-01-01T00:00:00Z",
    "accel:function_id": "f",
}
_OWNER = placement.Owner(project_id="p", user_id="u", consumer_type="CYBORG_JOB")
_LISTED = placement.ListedProvider(uuid=UUID, name="n", parent_uuid=None, generation=1)
_GROUP = RequestGroup.parse({"resources:FPGA": "1"})


def of_placement(method: str, *given: Any) -> Call:
    return lambda conf: getattr(placement.Client(conf), method)(*given)


def _nodes(conf: cfg.ConfigOpts) -> Any:
    return list(ironic.nodes(conf))


def _node_uid(conf: cfg.ConfigOpts) -> str:
    with answers.reading("Kubernetes"):
        return Cluster(conf).node_uid()


def _token(conf: cfg.ConfigOpts) -> int | None:
    """The status of a request with a token; None if it is not valid."""
    conf.set_override("auth_strategy", "keystone", group="api")
    with middleware.building(conf):
        validated = middleware.authtoken({})(webob.Response())
    asked = webob.Request.blank("/v2/devices", headers={"X-Auth-Token": str(uuid.uuid4())})
    answer = asked.get_response(middleware.Answered(validated))
    if answer.status_code == 503:
        raise errors.ServiceUnavailable(answer.text)
    assert answer.status_code in {200, 401}, answer.text
    return 200 if answer.status_code == 200 else None


@dataclass(frozen=True)
class Asked:
    """A call, what a service that is honest answers, and lies that are no lies to this call."""

    call: Call
    honest: Any
    #: What the call returns where it cannot know.
    unknown: Any = None
    believes: frozenset[str] = frozenset()


_NO_BODY = frozenset(
    {"is HTML", "is null", "is a number", "is a huge number", "is a list", "is a text", "is deep"}
    | {"is an object", "is nothing", "is empty", "is no UTF-8", "has many values"}
)
CALLS = {
    "Placement's tree": Asked(
        of_placement("find_tree", "n"), {"resource_providers": [_PROVIDER]}, unknown=[]
    ),
    "Placement's provider": Asked(of_placement("read_provider", _LISTED), _STORED),
    "Placement's consumers": Asked(
        of_placement("allocations", UUID),
        {"allocations": {UUID: {"resources": {"FPGA": 1}}}},
    ),
    "Placement's allocations": Asked(
        of_placement("find_allocations", UUID),
        {
            "allocations": {UUID: {"resources": {"FPGA": 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "CYBORG_JOB",
            "consumer_generation": 1,
        },
    ),
    "Placement's candidates": Asked(
        of_placement("find_candidates", [_GROUP], 1),
        {
            "allocation_requests": [{"mappings": {"_0": [UUID]}}],
            "provider_summaries": {UUID: {"resources": {"FPGA": {"capacity": 1, "used": 0}}}},
        },
    ),
    "a provider for Placement": Asked(
        of_placement("create_provider", "n", UUID, None), {"generation": 1}
    ),
    "a place in Placement": Asked(
        of_placement("place_provider", UUID, "n", None), {"generation": 1}
    ),
    "inventories for Placement": Asked(
        of_placement("set_inventories", UUID, {"FPGA": tree.Inventory(**_INVENTORY)}, 1), _STORED
    ),
    "traits for Placement": Asked(of_placement("set_traits", UUID, ["HW_A"], 1), _STORED),
    "a claim for Placement": Asked(
        of_placement("hold", UUID, _OWNER, {UUID: {"FPGA": 1}}, None), {}, believes=_NO_BODY
    ),
    "Nova's server": Asked(lambda conf: nova.is_there(conf, UUID), {"server": {"id": UUID}}),
    "Nova's deleted server": Asked(
        lambda conf: nova.has_deleted(conf, UUID), {"servers": [{"id": UUID}]}, unknown=False
    ),
    "events for Nova": Asked(
        lambda conf: nova.send_events(conf, [nova.bound_event(UUID, UUID, bound=True)])[0],
        {"events": [{"code": 200}]},
        believes=frozenset({"is nothing", "is an error in HTML"})
        | {"is an error and null", "is an error and deep"},
    ),
    "Glance's image": Asked(lambda conf: glance.find_image(conf, uuid=UUID), _IMAGE),
    "Glance's images": Asked(
        lambda conf: glance.find_image(conf, function_id="f"), {"images": [_IMAGE]}
    ),
    "Ironic's nodes": Asked(_nodes, {"nodes": [{"uuid": UUID}]}),
    "Ironic's inventory": Asked(
        lambda conf: ironic.inventory(conf, UUID),
        {"inventory": {}},
        believes=frozenset({"is an object"}),
    ),
    "Keystone's limits": Asked(
        lambda conf: quotas.limits_of(conf, "p"),
        {
            "model": {"name": "flat"},
            "endpoint": {"id": "e", "service_id": "s", "region_id": None},
            "registered_limits": [{"resource_name": "class:FPGA", "default_limit": 1}],
            "limits": [{"resource_name": "class:FPGA", "resource_limit": 1}],
        },
        unknown={},
    ),
    "Keystone's tokens": Asked(
        _token,
        {
            "token": {
                "methods": ["password"],
                "expires_at": "2999-01-01T00:00:00.000000Z",
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "user": {"id": "u", "name": "n", "domain": {"id": "d", "name": "d"}},
                "project": {"id": "p", "name": "n", "domain": {"id": "d", "name": "d"}},
                "roles": [{"id": "r", "name": "member"}],
            }
        },
    ),
    "Cyborg for Kubernetes": Asked(
        lambda conf: list(accelerators.KubeApi(conf).rows("devices")), {"devices": [{"uuid": UUID}]}
    ),
    "an allocation for Kubernetes": Asked(
        lambda conf: accelerators.KubeApi(conf).find("/allocations/x"),
        {"uuid": UUID},
        believes=frozenset({"is an object"}),
    ),
    "Kubernetes' claims": Asked(
        lambda conf: list(Cluster(conf).resource_claims()),
        {"metadata": {}, "items": [{"metadata": {"name": "c", "uid": UUID}}]},
    ),
    "Kubernetes' node": Asked(_node_uid, {"metadata": {"name": "n", "uid": UUID}}),
}


@pytest.fixture
def liar() -> Iterator[Liar]:
    made = Liar()
    yield made
    made.stop()


@pytest.fixture
def deceived(
    conf: cfg.ConfigOpts, liar: Liar, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> cfg.ConfigOpts:
    """A configuration that has the liar for every service, and gives each call a second."""
    for group in GROUPS:
        conf.set_override("auth_type", "none", group=group)
        conf.set_override("endpoint_override", liar.url, group=group)
        conf.set_override("timeout", TIMEOUT, group=group)
    for module in (limit, limit_opts):
        monkeypatch.setattr(module, "CONF", conf)
    monkeypatch.setattr(limit, "_SDK_CONNECTION", None)
    limit_opts.register_opts(conf)
    options = {"auth_type": "none", "endpoint_override": liar.url, "endpoint_id": "e"}
    for name, value in (options | {"timeout": TIMEOUT}).items():
        conf.set_override(name, value, group="oslo_limit")
    for group, given in auth_token_opts.list_auth_token_opts():
        conf.register_opts(given, group=group)
    endpoint = ka_loading.get_auth_plugin_conf_options("none")
    conf.register_opts(endpoint, group="keystone_authtoken")
    for name, value in (_TOKEN_OPTIONS | {"endpoint": liar.url}).items():
        conf.set_override(name, value, group="keystone_authtoken")
    config = tmp_path / "kubeconfig"
    named = [{"name": "c", "cluster": {"server": liar.url}, "context": {"cluster": "c"}}]
    config.write_text(
        json.dumps({"clusters": named, "contexts": named, "current-context": "c", "users": []})
    )
    conf.set_override("kubeconfig", str(config), group="kube")
    conf.set_override("node_name", "n", group="kube")
    # That is what a call of Kubernetes has.
    monkeypatch.setattr(answers, "LONGEST", float(TIMEOUT))
    return conf


def outcome(conf: cfg.ConfigOpts, asked: Asked) -> Any:
    """What the call returns, or the error that it ends with; any other error is a fault."""
    try:
        return asked.call(conf)
    except KNOWN as exc:
        return exc


@pytest.mark.parametrize("name", CALLS)
def test_no_lie_is_more_than_a_known_error(
    name: str, deceived: cfg.ConfigOpts, liar: Liar
) -> None:
    asked = CALLS[name]
    for lie, told in QUICK.items():
        liar.lie = told
        # What other tests have had of memory at once counts for nothing.
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        found = outcome(deceived, asked)
        assert time.monotonic() - began < TIMEOUT + SLACK, lie
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY, lie
        is_known = isinstance(found, KNOWN) or found == asked.unknown
        assert is_known or lie in asked.believes, (lie, found)
        assert not any("elsewhere" in call for call in liar.calls), "a redirect was followed"


@pytest.mark.parametrize("lie", SLOW)
def test_no_call_lasts_longer_than_it_may(lie: str, deceived: cfg.ConfigOpts, liar: Liar) -> None:
    """All calls wait at the same time."""
    # What is loaded at the first call is no part of it.
    liar.lie = QUICK["resets"]
    for asked in CALLS.values():
        outcome(deceived, asked)
    liar.lie = SLOW[lie]

    def timed(asked: Asked) -> tuple[float, Any]:
        began = time.monotonic()
        found = outcome(deceived, asked)
        return time.monotonic() - began, found

    with futures.ThreadPoolExecutor(len(CALLS)) as pool:
        for name, (seconds, found) in zip(CALLS, pool.map(timed, CALLS.values()), strict=True):
            assert seconds < TIMEOUT + SLACK, name
            assert isinstance(found, KNOWN), (name, found)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_of_another_type_is_a_known_error_or_does_no_harm(
    name: str, deceived: cfg.ConfigOpts, liar: Liar
) -> None:
    asked = CALLS[name]
    liar.lie = liars.said(asked.honest)
    assert not isinstance(outcome(deceived, asked), Exception), outcome(deceived, asked)
    for document in liars.twisted(asked.honest):
        liar.lie = liars.said(document)
        outcome(deceived, asked)


def test_what_a_service_says_of_waiting_is_not_done(deceived: cfg.ConfigOpts, liar: Liar) -> None:
    """keystoneauth sleeps for so long."""
    deceived.set_override("num_retries", 1, group="glance")
    liar.lie = QUICK["is an error in HTML"]
    began = time.monotonic()
    assert isinstance(outcome(deceived, CALLS["Glance's image"]), ka_exc.ServiceUnavailable)
    assert time.monotonic() - began < SLACK
    assert len(liar.calls) == 2


def test_an_image_may_be_slow_and_not_drip(deceived: cfg.ConfigOpts, liar: Liar) -> None:
    def slow(_liar: Liar, send: liars.Send) -> None:
        send(b"HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\nConnection: close\r\n\r\n")
        for _ in range(16):
            send(b"x" * 65536)
            time.sleep(0.1)

    liar.lie = Lie(instead=slow)
    assert sum(map(len, glance.download(deceived, UUID))) == 2**20
    liar.lie = SLOW["drips the body"]
    began = time.monotonic()
    with pytest.raises(glance.Incomplete):
        list(glance.download(deceived, UUID))
    assert time.monotonic() - began < TIMEOUT + SLACK


def test_what_is_said_to_be_stored_and_is_not_is_noticed(
    deceived: cfg.ConfigOpts, liar: Liar
) -> None:
    api = placement.Client(deceived)
    liar.lie = liars.said(_STORED | {"traits": []})
    with pytest.raises(placement.PlacementError, match="has stored something else"):
        api.set_traits(UUID, ["HW_A"], 1)
    liar.lie = liars.said(_STORED | {"inventories": {}})
    with pytest.raises(placement.PlacementError, match="has stored something else"):
        api.set_inventories(UUID, {"FPGA": tree.Inventory(total=1, reserved=0, max_unit=1)}, 1)


def test_a_node_of_kubernetes_goes_on(
    deceived: cfg.ConfigOpts, liar: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log, and no traceback."""
    caplog.set_level(logging.WARNING, "cyborg")
    for lie, liar.lie in QUICK.items():
        caplog.clear()
        driver = kube_service.KubeletPlugin(deceived)
        driver._look()
        driver._renew()
        assert not [record for record in caplog.records if record.exc_info], lie
        for said in ("not published", "not renewed"):
            assert len([each for each in caplog.messages if said in each]) == 1, lie


@pytest.fixture
def bound_site(site: Site, liar: Liar) -> Site:
    """The API with a Placement that lies."""
    site.call("POST", "/device_profiles", [{"name": "p", "groups": [{"resources:FPGA": "1"}]}])
    local.point_at(site.conf, liar.url)
    site.conf.set_override("timeout", TIMEOUT, group="placement")
    site.conf.clear_override("auth_type", group="nova")
    clients.close()
    return site


def allocate(site: Site) -> requests.Response:
    body = {"consumer": {"uuid": str(uuid.uuid4()), "type": "JOB"}, "device_profile_name": "p"}
    return site.ask("POST", "/allocations", body, "2.4")


def test_the_api_says_that_a_service_is_unavailable(
    bound_site: Site, liar: Liar, caplog: pytest.LogCaptureFixture
) -> None:
    for lie, told in QUICK.items():
        liar.lie = told
        candidates = bound_site.ask("GET", "/device_profiles/p/candidates", version="2.4")
        for answer in (allocate(bound_site), candidates):
            assert answer.status_code == 503, (lie, answer.text)
            assert "Placement" in answer.json()["errors"][0]["detail"], lie
    assert not [record for record in caplog.records if record.exc_info]


def beside(ask: Callable[[], int], look: Callable[[], bool]) -> tuple[set[int], float]:
    """What twenty are answered who ask at once, and the longest that others waited meanwhile."""
    longest = 0.0
    with futures.ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask) for _ in range(20)]
        while not all(each.done() for each in asked):
            began = time.monotonic()
            assert look()
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.05)
    return {each.result() for each in asked}, longest


@pytest.mark.parametrize("lie", ["hangs", "drips the body"])
def test_a_service_that_hangs_does_not_stop_the_api(
    lie: str, bound_site: Site, liar: Liar
) -> None:
    """While a member asks for twenty allocations, others read as before."""
    bound_site.conf.set_override("timeout", 10, group="placement")
    liar.lie = SLOW[lie]
    statuses, longest = beside(
        lambda: allocate(bound_site).status_code,
        lambda: bound_site.ask("GET", "/devices", version="2.4").status_code == 200,
    )
    assert statuses == {503}
    # A busy machine adds something to the second that those wait who take the last threads.
    assert longest < 5


@pytest.fixture(params=["none", "password"])
def guarded(
    request: pytest.FixtureRequest, deceived: cfg.ConfigOpts, liar: Liar, monkeypatch: Any
) -> Iterator[str]:
    """The URL of a server with few threads that asks the liar for each token.

    With a password it asks for a token of its own first, one thread after the other.
    """
    monkeypatch.setattr(answers, "LONGEST", 10.0)
    known = ka_loading.get_auth_plugin_conf_options("password")
    deceived.register_opts(known, group="keystone_authtoken")
    own = {"username": "u", "password": "p", "project_name": "p", "user_domain_id": "default"}
    options = own | {"auth_url": liar.url, "auth_type": request.param}
    for name, value in options.items():
        deceived.set_override(name, value, group="keystone_authtoken")
    deceived.set_override("threads", 8, group="api")
    with middleware.building(deceived):
        validated = middleware.authtoken({})(webob.Response())
    made = server.Server(deceived, middleware.Answered(validated), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{made.listen()}"
    made.start()
    yield url
    made.stop()


def test_a_keystone_that_hangs_does_not_stop_what_needs_no_token(
    guarded: str, liar: Liar
) -> None:
    liar.lie = SLOW["hangs"]

    def ask() -> int:
        token = {"X-Auth-Token": str(uuid.uuid4())}
        return requests.get(f"{guarded}/v2/devices", headers=token, timeout=PATIENCE).status_code

    statuses, longest = beside(ask, lambda: requests.get(f"{guarded}/v2", timeout=PATIENCE).ok)
    assert statuses == {503}
    assert longest < 5


def test_places_are_shared() -> None:
    places = answers.Places(10)
    held = [places.take("placement", "one") for _ in range(2)]
    for each in held:
        each.__enter__()
    began = time.monotonic()
    with pytest.raises(answers.Unusable, match="Too many requests wait for placement"):
        places.take("placement", "one").__enter__()
    waited = time.monotonic() - began
    assert answers._PATIENCE <= waited < answers._PATIENCE + SLACK
    # Another project, and another service, are not kept waiting; and nobody waits again.
    with places.take("placement", "two"), places.take("nova", "one"):
        began = time.monotonic()
        with pytest.raises(answers.Unusable):
            places.take("placement", "three").__enter__()
        assert time.monotonic() - began < answers._PATIENCE
    for each in held:
        each.__exit__(None, None, None)
    # It has answered: who finds no place waits, and gets one.
    got = threading.Event()

    def wait() -> None:
        with places.take("placement", "one"):
            got.set()

    with places.take("placement", "one"), places.take("placement", "one"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.wait(0.2)
    assert got.wait(PATIENCE)
    waiting.join()
    assert places._taken == {}
    # One thread has one place, of one service after the other.
    one = answers.Places(1)
    for service in ("nova", "placement"):
        with one.take(service, None):
            pass
