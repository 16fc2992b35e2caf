# SPDX-License-Identifier: Apache-2.0
"""``tools/benchmarks/compare.py --endpoint`` measures a Cyborg that runs already."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys

import pytest

from cyborg.tests.service import RP, Site

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parents[4] / "tools/benchmarks/compare.py"


@pytest.fixture
def served(site: Site) -> Site:
    """A host with accelerators, and a profile that takes one."""
    site.start()
    group = {"resources:FPGA": "1"}
    site.call("POST", "/device_profiles", [{"name": "dp", "groups": [group]}])
    return site


def arguments(site: Site, folder: pathlib.Path, *more: str) -> list[str]:
    command = [str(SCRIPT), "--endpoint", site.endpoint, "--at-once", "1"]
    return [*command, "--size", "0.1", "--rounds", "1", "--results", str(folder), *more]


def compare(site: Site, folder: pathlib.Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments(site, folder, *more)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_what_a_client_sees_of_an_endpoint(served: Site, tmp_path: pathlib.Path) -> None:
    header = "OpenStack-API-Version: accelerator 2.4"
    run = compare(served, tmp_path, "--profile", "dp", "--header", header, "--plot")
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "speed.json").read_text())["endpoint"]
    # There are no ARQs to be listed.
    assert found.keys() == {"boots 1x1", "time of boots 1x1", "list deployables"}
    assert all(value > 0 for value in found.values())
    head, _, first, *_ = (tmp_path / "speed.md").read_text().splitlines()
    assert head.endswith("| reached | endpoint |")
    assert first.startswith("| boots of 1 accelerator, 1 at once (a second) | – | – |")
    assert served.call("GET", "/accelerator_requests")["arqs"] == []


def test_a_boot_that_fails_leaves_nothing(served: Site, tmp_path: pathlib.Path) -> None:
    elsewhere = ["--profile", "dp", "--host", "elsewhere", "--provider", RP]
    run = compare(served, tmp_path, *elsewhere)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr, run.stderr
    assert served.call("GET", "/accelerator_requests")["arqs"] == []


#: Arguments, and what is said to be missing, where there is no host.
LACKS = [
    ([], "--endpoint needs --profile"),
    (["--profile", "dp"], "name one of its hosts with --host: it has none"),
    (["--profile", "dp", "--host", "h"], "it has no deployable with an accelerator"),
    (["--profile", "dp", "--header", "X-Auth-Token"], "must be of the form NAME:TEXT"),
]


def test_what_it_lacks_is_said(site, tmp_path, monkeypatch, capsys, benchmark_tool) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_given: None)
    for more, sentence in LACKS:
        monkeypatch.setattr(sys, "argv", arguments(site, tmp_path, *more))
        assert benchmark_tool("compare").main() == 1
        assert sentence in capsys.readouterr().err
