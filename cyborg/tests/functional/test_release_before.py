# SPDX-License-Identifier: Apache-2.0
"""An upgrade without a stop: the release before on this one's schema, and each beside the other."""

from __future__ import annotations

import collections
import contextlib
import itertools
import pathlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import consistency, db, host_keys
from cyborg.db import models, revision, schema
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import deployment, servers
from cyborg.tests.deployment import Deployment
from cyborg.tests.functional import test_expansion
from cyborg.tests.novasink import NovaSink
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import TIMEOUT, wait_for

#: The last commit before the migrations and messages of the release that is being made: g1 and
#: everything after it, and RPC 2.2. The first commit after a release sets it to that release.
RELEASE_BEFORE = "0883d768d6e29a5b62f1b2bea809444e4639eef3"

#: Boots of each kind that must end in each stage of the upgrade.
BOOTS = 2
OLD, NEW = "old", "new"
KINDS = (OLD, NEW)
#: The host of each release's agent.
HOSTS = {OLD: "compute-1", NEW: "compute-2"}
GROUPS = [{"resources:FPGA": "1"}]


def git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in the repository."""
    command = ["git", "-C", str(servers.REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, check=False)


def export(commit: str, folder: pathlib.Path) -> None:
    """Put the code of a commit into a folder."""
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        servers.end_without(f"commit {commit} is not here: the clone is shallow, or not a clone")
    archived = git("archive", commit, "cyborg")
    assert archived.returncode == 0, archived.stderr
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archived.stdout, check=True)


@pytest.mark.parametrize(
    ("variable", "end"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_clone_without_the_release_before_fails_where_all_must_run(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    end: type[BaseException],
) -> None:
    monkeypatch.setenv("CI", variable)
    with pytest.raises(end, match="is not here"):
        export("0" * 40, tmp_path)


@pytest.fixture
def code_before(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the code of the release before."""
    folder = tmp_path / "release-before"
    export(RELEASE_BEFORE, folder)
    return folder


class Boots:
    """Boots and deletes servers as Nova does, by each release's API on each release's host."""

    def __init__(self, urls: dict[str, str], sink: NovaSink) -> None:
        self._urls = urls
        self._sink = sink
        self._end = threading.Event()
        self._kinds: tuple[tuple[str, str], ...] = ()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="boots", daemon=True)
        #: How many ended well, by API and host.
        self.ended: collections.Counter[tuple[str, str]] = collections.Counter()

    def __enter__(self) -> Boots:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT)
        assert self._failure is None, self._failure

    def go_on(self, stage: str, *kinds: tuple[str, str]) -> None:
        """Return when so many boots of each kind, API and host, have ended from now on."""
        before, self._kinds = self.ended.copy(), kinds
        if self._thread.ident is None:
            self._thread.start()

        def done() -> bool:
            assert self._failure is None, stage
            return all(self.ended[kind] - before[kind] >= BOOTS for kind in kinds)

        wait_for(stage, done)

    def _run(self) -> None:
        for number in itertools.count():
            if self._end.is_set():
                return
            kind = self._kinds[number % len(self._kinds)]
            try:
                self._boot(*kind)
            except Exception as exc:  # noqa: BLE001 - whatever ends a boot is shown by the test
                self._failure = f"a boot of API and host {kind} ended with {exc!r}"
                return
            self.ended[kind] += 1

    def _boot(self, api: str, host: str) -> None:
        instance = models.new_uuid()
        self._sink.servers.add(instance)
        (arq,) = self._ask(api, "POST", "", {"device_profile_name": "p"})["arqs"]
        where = {
            "hostname": HOSTS[host],
            "device_rp_uuid": provider_uuid(f"{HOSTS[host]}_FakeDevice"),
            "instance_uuid": instance,
        }
        patch = [{"path": f"/{name}", "op": "add", "value": value} for name, value in where.items()]
        self._ask(api, "PATCH", "", {arq["uuid"]: patch})
        wait_for("the event", lambda: self._sink.events.get(arq["uuid"]))
        found = self._ask(api, "GET", f"?instance={instance}&bind_state=resolved")["arqs"]
        assert [(each["uuid"], each["state"]) for each in found] == [(arq["uuid"], "Bound")]
        self._ask(api, "DELETE", f"?instance={instance}")

    def _ask(self, api: str, method: str, query: str, body: object = None) -> Any:
        url = f"{self._urls[api]}/v2/accelerator_requests{query}"
        answer = requests.request(method, url, json=body, timeout=TIMEOUT)
        assert answer.ok, f"{method} {query}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


@pytest.fixture
def releases(
    code_before: pathlib.Path,
    database_url: str,
    placement: PlacementServer,
    sink: NovaSink,
    tmp_path: pathlib.Path,
    conf: cfg.ConfigOpts,
) -> Iterator[dict[str, Deployment]]:
    """Both releases in one cloud; nothing of them runs yet. This process reads the database."""
    conf.set_override("connection", database_url, group="database")
    db.configure(conf)
    with contextlib.ExitStack() as stack:
        stack.callback(db.dispose)
        broker = stack.enter_context(servers.new_vhost())
        found = {}
        for kind, code in ((OLD, code_before), (NEW, None)):
            (folder := tmp_path / kind).mkdir()
            options = deployment.options(
                database_url, broker, tmp_path, placement, sink.url, folder / "control.json"
            )
            options |= {"oslo_messaging_rabbit__ssl": "false", "conductor__poll_interval": "1"}
            # The release before signs nothing, and knows one exchange.
            options |= {"agent__require_host_keys": "false", "DEFAULT__rpc_exchange": "cyborg"}
            found[kind] = Deployment(folder, code, **options)
            stack.callback(found[kind].kill)
        yield found


def start_api(release: Deployment) -> None:
    """Start the API with its built-in server, and wait until it answers."""
    port = free_port()
    release.start("api", "cyborg-api", api__port=str(port))
    release.url = f"http://127.0.0.1:{port}"
    wait_for("the API", lambda: release.ask("GET", "/") is not None)


def wait_for_host(placement: PlacementServer, kind: str) -> None:
    """Wait until Placement offers the device of the host."""
    provider = provider_uuid(f"{HOSTS[kind]}_FakeDevice")
    wait_for("the provider", lambda: provider in placement.shows("FPGA"))


def conductors() -> set[str]:
    """The names of the conductors that live, or did not end in order."""
    with db.reader() as session:
        return set(session.scalars(sa.select(models.Conductor.name)))


def replace_conductor(stops: Deployment, starts: Deployment) -> None:
    """Let the conductor of one release take over from that of the other one."""
    before = conductors()
    starts.start("conductor", "cyborg-conductor")
    wait_for("the conductor", lambda: conductors() - before)
    stops.terminate("conductor")
    assert stops.wait("conductor") == 0


def work_left() -> list[str]:
    """What is left to be done."""
    with db.reader() as session:
        return list(session.scalars(sa.select(models.Work.key)))


@pytest.mark.services
@pytest.mark.parametrize("database_kind", servers.DATABASES, indirect=True)
def test_each_release_serves_beside_the_other(
    releases: dict[str, Deployment], placement: PlacementServer, sink: NovaSink
) -> None:
    old, new = releases[OLD], releases[NEW]
    for host in HOSTS.values():
        placement.make_provider(host)
    assert old.run("cyborg-dbsync", "upgrade").returncode == 0
    assert revision.version() == test_expansion.BEFORE
    old.start("conductor", "cyborg-conductor")
    old.start(HOSTS[OLD], "cyborg-agent")
    start_api(old)
    old.ask("POST", "/v2/device_profiles", [{"name": "p", "groups": GROUPS}])
    wait_for_host(placement, OLD)
    urls = {OLD: old.url}
    with Boots(urls, sink) as boots:
        boots.go_on("the release before", (OLD, OLD))
        assert new.run("cyborg-dbsync", "upgrade").returncode == 0
        boots.go_on("the release before on the new schema", (OLD, OLD))

        new.enrol(HOSTS[NEW])
        start_api(new)
        urls[NEW] = new.url
        new.start(HOSTS[NEW], "cyborg-agent")
        wait_for_host(placement, NEW)
        every = list(itertools.product(KINDS, HOSTS))
        boots.go_on("the conductor before", *every)
        replace_conductor(old, new)
        boots.go_on("the new conductor", *every)
        replace_conductor(new, old)
        boots.go_on("the conductor before again", *every)
        replace_conductor(old, new)
    assert revision.version() == schema.head()
    wait_for("all work", lambda: not work_left())
    assert consistency.violations() == []
    (key,) = host_keys.list_keys(HOSTS[NEW])
    assert key.used_ms is not None
