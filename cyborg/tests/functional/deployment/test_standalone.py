# SPDX-License-Identifier: Apache-2.0
"""cyborg-standalone as its user meets it: start, stop, start again, refusals with a sentence."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from cyborg.cmd import standalone
from cyborg.placement import local
from cyborg.tests.standalone_site import HOST, PROFILE, RP, TIMEOUT, Instance, Site, wait_for

pytestmark = pytest.mark.slow

BIN = pathlib.Path(sys.executable).parent


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Site:
    return Site(tmp_path / "state")


@pytest.fixture
def serving(site: Site) -> Iterator[Site]:
    with site.serve():
        site.prepare()
        yield site


def _run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        env=os.environ | environment,
    )


def _openstack(site: Site, *arguments: str) -> Any:
    access = ["--os-auth-type", "none", "--os-endpoint", f"{site.url}/v2"]
    command = [BIN / "openstack", *access, "accelerator", *arguments, "-f", "json"]
    done = _run(*command, NO_PROXY="127.0.0.1")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_unmodified_client_binds_with_no_more_than_the_endpoint(serving: Site) -> None:
    assert [device["hostname"] for device in _openstack(serving, "device", "list")] == [HOST]
    arq = _openstack(serving, "arq", "create", PROFILE)
    instance = Instance(serving)
    shown = _openstack(serving, "arq", "bind", str(arq["uuid"]), HOST, instance.uuid, RP)
    assert shown["state"] in {"BindStarted", "Bound"}
    assert shown["instance_uuid"] == instance.uuid
    wait_for("Bound", lambda: instance.states() == {"Bound"})


def test_what_no_server_has_is_an_error_without_html(serving: Site) -> None:
    for accept in ("application/json", "text/html", "*/*"):
        for path in ("/v2/servers/vm", "/v2/servers/detail?name=vm", "/v2/nope", "/nope"):
            headers = {"Accept": accept}
            asked = requests.get(f"{serving.url}{path}", headers=headers, timeout=TIMEOUT)
            assert asked.status_code == 404
            assert list(asked.json()) == ["error_message"]
            assert "<" not in asked.text
    done = _run(
        *(BIN / "openstack", "--os-auth-type", "none", "--os-endpoint", f"{serving.url}/v2"),
        *("accelerator", "arq", "bind", "x", HOST, "vm", RP),
        NO_PROXY="127.0.0.1",
    )
    assert done.returncode != 0
    assert "name a server by its uuid" in done.stderr
    assert "<br" not in done.stderr


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


def test_the_command_says_one_line_and_ends_on_ctrl_c(tmp_path: pathlib.Path) -> None:
    proxy = {"http_proxy": "http://127.0.0.1:9", "no_proxy": "", "NO_PROXY": ""}
    site = Site(tmp_path)
    with subprocess.Popen(
        [BIN / "cyborg-standalone", *site.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | proxy,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        # The device is in Placement, so no proxy came between.
        site.prepare()
        assert site.ask("GET", f"/placement/resource_providers/{RP}")["uuid"] == RP
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert line == f"Cyborg is ready: {site.url}/v2 (state in {tmp_path})\n"
    assert (rest, process.returncode) == ("", 0)


@pytest.mark.parametrize("was", ["new", "readable"])
def test_no_other_user_reads_the_databases(tmp_path: pathlib.Path, was: str) -> None:
    site = Site(tmp_path)
    tmp_path.chmod(0o777)
    names = (standalone.DATABASE, local.DATABASE)
    if was == "readable":
        # As one of before has left them.
        with site.serve():
            pass
        for path in tmp_path.glob("*.sqlite*"):
            path.chmod(0o644)
    with subprocess.Popen(
        [BIN / "cyborg-standalone", *site.arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        umask=0,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            site.prepare()
            modes = {each.name: each.stat().st_mode for each in tmp_path.glob("*.sqlite*")}
        finally:
            process.kill()
    # The log and its index are there while somebody is connected.
    assert set(names) <= modes.keys()
    assert {oct(mode & 0o777) for mode in modes.values()} == {"0o600"}, modes


def test_a_directory_in_use_is_refused(serving: Site) -> None:
    done = _run(BIN / "cyborg-standalone", *serving.arguments, "--port", "0")
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"is in use by process {serving.process.pid}; stop that one, or choose another "
        "--state-dir.\n"
    )
    assert serving.arqs() == []


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("[api]\nhost_ip = 0.0.0.0\n", "whoever reaches 0.0.0.0 would be an administrator"),
        ("[conductor]\npoll_interval = often\n", "poll_interval"),
        ("no group\n", "cyborg.conf"),
    ],
)
def test_it_does_not_start_with_a_bad_configuration(tmp_path, config, sentence) -> None:
    site = Site(tmp_path, config)
    done = _run(BIN / "cyborg-standalone", *site.arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr.splitlines()[-1]


def test_a_port_in_use_is_refused(site: Site) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = _run(BIN / "cyborg-standalone", *site.arguments, "--port", port)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


def test_without_its_extra_it_says_what_to_install(site: Site) -> None:
    program = "import sys; sys.modules['placement'] = None; from cyborg.cmd import standalone; "
    done = _run(sys.executable, "-c", program + "sys.exit(standalone.main())", *site.arguments)
    assert done.returncode == 1
    assert "install Cyborg with its extra standalone" in done.stderr


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
