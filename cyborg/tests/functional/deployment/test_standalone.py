# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone as its user meets it: start, stop, start again, refusals with a sentence."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Collection

import pytest
import requests

from cyborg.cmd import standalone
from cyborg.placement import local
from cyborg.tests.one_service import Forked
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.standalone_site import HOST, PROFILE, RP, TIMEOUT, Instance, Site, wait_for

pytestmark = pytest.mark.slow

BIN = pathlib.Path(sys.executable).parent


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Site:
    return Site(tmp_path / "state")


def test_the_unmodified_client_binds_with_no_more_than_the_endpoint(
    serving: Site, quiet_openstack: None
) -> None:
    openstack = OpenStack(endpoint=f"{serving.url}/v2", ignored=("cyborgclient", "cyborg.osc"))
    assert [device["hostname"] for device in openstack("device", "list")] == [HOST]
    arq = openstack("arq", "create", PROFILE)
    instance = Instance(serving)
    shown = openstack("arq", "bind", str(arq["uuid"]), HOST, instance.uuid, RP)
    assert shown["state"] in {"BindStarted", "Bound"}
    assert shown["instance_uuid"] == instance.uuid
    wait_for("Bound", lambda: instance.states() == {"Bound"})
    # What no server has is an error without HTML.
    for accept in ("application/json", "text/html", "*/*"):
        for path in ("/v2/servers/vm", "/v2/servers/detail?name=vm", "/v2/nope", "/nope"):
            headers = {"Accept": accept}
            asked = requests.get(f"{serving.url}{path}", headers=headers, timeout=TIMEOUT)
            assert asked.status_code == 404
            assert list(asked.json()) == ["error_message"]
            assert "<" not in asked.text
    said = openstack.refused("arq", "bind", "x", HOST, "vm", RP)
    assert "name a server by its uuid" in said
    assert "<br" not in said
    ours = OpenStack(endpoint=f"{serving.url}/v2")
    assert "name a server by its uuid" in ours.refused("arq", "bind", arq["uuid"], HOST, "vm", RP)


def test_it_is_checked_as_the_page_says(serving: Site, tmp_path: pathlib.Path) -> None:
    page = pathlib.Path(__file__).parents[4] / "doc/source/reference/cyborg-status.rst"
    block = page.read_text().partition(".. code-block:: ini\n")[2].partition("\n\n``")[0]
    config = textwrap.dedent(block).replace("/var/lib/cyborg", str(serving.journal.parent))
    (tmp_path / "check.conf").write_text(config.replace("http://127.0.0.1:6666", serving.url))
    command = [str(BIN / "cyborg-status"), "--config-file", str(tmp_path / "check.conf"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert "Hosts compared with Placement: 1.\n" in done.stdout, done.stderr
    assert done.returncode in {0, 1}, done.stderr


def test_what_the_first_process_left_the_second_goes_on_with(tmp_path, sink) -> None:
    nova = f"[nova]\nauth_type = none\nendpoint_override = {sink.url}\n"
    site = Site(tmp_path, nova)
    sink.status = 503
    with site.serve():
        site.prepare()
        instance = Instance(site)
        instance.bind()
        wait_for("Bound", lambda: instance.states() == {"Bound"})
        wait_for("an attempt", lambda: sink.requests)
        before = site.arqs()
        assert site.stop() == 0
    sink.status = None
    with site.serve():
        assert site.arqs() == before
        wait_for("rest", site.is_at_rest)
        assert sink.events == dict.fromkeys(instance.arqs, "completed")
        another = Instance(site)
        another.bind()
        wait_for("Bound", lambda: another.states() == {"Bound"})
        assert site.stop() == 0


def test_the_command_says_one_line_ends_on_ctrl_c_and_shows_nobody_its_databases(tmp_path) -> None:
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    site = Site(tmp_path)
    tmp_path.chmod(0o777)
    for is_new in (True, False):
        with subprocess.Popen(
            [BIN / "cyborg-standalone", *site.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | proxy,
            umask=0,
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if is_new:
                    site.prepare()
                # The device is in Placement, so no proxy came between.
                assert site.ask("GET", f"/placement/resource_providers/{RP}")["uuid"] == RP
                modes = {each.name: each.stat().st_mode for each in tmp_path.glob("*.sqlite*")}
                process.send_signal(signal.SIGINT)
                rest = process.stdout.read()
            finally:
                process.kill()
        assert line == f"Cyborg is ready: {site.url}/v2 (state in {tmp_path})\n"
        assert (rest, process.returncode) == ("", 0)
        # The log and its index are there while somebody is connected.
        assert {standalone.DATABASE, local.DATABASE} <= modes.keys()
        assert {oct(mode & 0o777) for mode in modes.values()} == {"0o600"}, modes
        # As one of before has left them.
        for path in tmp_path.glob("*.sqlite*"):
            path.chmod(0o644)


def refusal(site: Site, *more: str, hidden: Collection[str] = ()) -> str:
    """What the command says last as it does not start."""
    log = site.journal.with_name("said")
    process = Forked("cyborg-standalone", *site.arguments, *more, log=log, hidden=hidden)
    assert process.wait() == 1
    assert "Cyborg is ready" not in log.read_text()
    return log.read_text().splitlines()[-1]


def test_a_directory_in_use_is_refused(serving: Site) -> None:
    before = serving.arqs()
    assert refusal(serving, "--port", "0").endswith(
        f"is in use by process {serving.process.pid}; stop that one, or choose another "
        "--state-dir."
    )
    assert serving.arqs() == before


@pytest.mark.parametrize(
    ("config", "hidden", "sentence"),
    [
        ("[api]\nhost_ip = 0.0.0.0\n", [], "who reaches 0.0.0.0 would be an administrator"),
        ("[conductor]\npoll_interval = often\n", [], "poll_interval"),
        ("no group\n", [], "cyborg.conf"),
        ("", ["placement"], "install Cyborg with its extra standalone"),
    ],
)
def test_it_does_not_start_without_what_it_needs(tmp_path, config, hidden, sentence) -> None:
    assert sentence in refusal(Site(tmp_path, config), hidden=hidden)


def test_a_port_in_use_is_refused(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = refusal(site, "--port", str(other.getsockname()[1]))
    assert "cannot listen on 127.0.0.1" in said


@pytest.mark.parametrize(
    ("listens_on", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("localhost", "http://localhost:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("[::1]", "http://[::1]:1"),
        ("192.0.2.1", "http://192.0.2.1:1"),
    ],
)
def test_it_reaches_itself_wherever_it_listens(listens_on: str, url: str) -> None:
    assert standalone.own_url(listens_on, 1) == url
