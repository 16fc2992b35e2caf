# SPDX-License-Identifier: Apache-2.0
"""The examples, with nothing but a shell and curl, against cyborg-standalone."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cyborg.tests.standalone_site import HOST, TIMEOUT, Site, wait_for

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"
HEADERS = {"OpenStack-API-Version": "accelerator 2.4"}


@pytest.fixture
def serving(tmp_path: pathlib.Path) -> Iterator[Site]:
    """A host, and profiles of two accelerators, of one, and of more than there are."""
    site = Site(tmp_path / "state")
    with site.serve():
        site.prepare()
        for name, number in (("one", 1), ("many", 99)):
            groups = [{"resources:FPGA": str(number)}]
            site.ask("POST", "/v2/device_profiles", [{"name": name, "groups": groups}])
        yield site


def start(
    site: Site, name: str, *arguments: str, lease: int = 60, host: str = HOST
) -> subprocess.Popen[str]:
    environment = {"CYBORG": site.url, "TOKEN": "admin", "HOST_NAME": host, "LEASE": str(lease)}
    return subprocess.Popen(
        [str(EXAMPLES / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment | {"NO_PROXY": "127.0.0.1"},
    )


def run(site: Site, name: str, *arguments: str) -> str:
    """What an example prints that ends well."""
    process = start(site, name, *arguments)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    return out.strip()


def allocations(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.ask("GET", "/v2/allocations", **HEADERS)["allocations"]
    return found


def test_a_batch_job_has_its_accelerator_as_long_as_it_runs(serving, tmp_path) -> None:
    look = tmp_path / "look"
    query = f"curl -s -H 'OpenStack-API-Version: accelerator 2.4' {serving.url}/v2/allocations"
    printed = run(serving, "batch-job.sh", "dp", "sh", "-c", f"{query} >{look}; env")
    (devices,) = (line for line in printed.splitlines() if line.startswith("CYBORG_DEVICES="))
    assert devices.startswith("CYBORG_DEVICES=0000:0c:")
    assert '"Active"' in look.read_text()
    assert allocations(serving) == []
    failing = start(serving, "batch-job.sh", "many", "true")
    _, error = failing.communicate(timeout=TIMEOUT)
    assert failing.returncode != 0
    assert "There is no room" in error


def test_a_batch_job_says_what_it_takes() -> None:
    program = EXAMPLES / "batch-job.sh"
    said = subprocess.run([str(program), "dp"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr == f"usage: {program} PROFILE COMMAND...\n"


def test_a_batch_job_ends_when_its_accelerator_is_not_its_own(serving, tmp_path) -> None:
    begun = tmp_path / "begun"
    job = ("sh", "-c", f"touch {begun}; exec sleep 600")
    process = start(serving, "batch-job.sh", "dp", *job, lease=3)
    wait_for("the job", begun.exists)
    (found,) = allocations(serving)
    serving.ask("DELETE", f"/v2/allocations/{found['uuid']}", **HEADERS)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + 9


def test_what_another_host_has_is_not_taken(serving: Site, tmp_path: pathlib.Path) -> None:
    """An address of a device means something else on every host."""
    process = start(serving, "batch-job.sh", "dp", "true", host="host-2")
    _, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    assert "is on a host like host-2" in error


def test_a_proxy_finds_what_it_has_already(serving: Site, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "tls.env"
    for _ in range(2):
        run(serving, "tls-proxy.sh", "start", "dp", str(file))
        name, _, devices = file.read_text().strip().partition("=")
        assert name == "TLS_OFFLOAD_DEVICES"
        assert len(devices.split()) == 2
    (found,) = allocations(serving)
    assert (found["state"], found["lease_seconds"]) == ("Active", None)
    # Somebody else may have given it back.
    serving.ask("DELETE", f"/v2/allocations/{found['uuid']}", **HEADERS)
    run(serving, "tls-proxy.sh", "stop", str(file))
    assert allocations(serving) == []
    assert not file.exists()
