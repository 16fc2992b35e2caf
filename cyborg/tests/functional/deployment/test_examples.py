# SPDX-License-Identifier: Apache-2.0
"""The examples, with nothing but a shell and curl, against cyborg-standalone."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from cyborg.tests.standalone_site import TIMEOUT, Site, wait_for

pytestmark = pytest.mark.slow

EXAMPLES = pathlib.Path(__file__).parents[4] / "examples"
HEADERS = {"OpenStack-API-Version": "accelerator 2.4"}

Start = Callable[..., subprocess.Popen[str]]


def ended(process: subprocess.Popen[str]) -> str:
    """What an example prints that ends well."""
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    return out.strip()


def refused(process: subprocess.Popen[str]) -> str:
    """Why an example does not end well."""
    _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode != 0
    return err


def allocations(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.ask("GET", "/v2/allocations", **HEADERS)["allocations"]
    return found


def test_a_batch_job_has_its_accelerator_as_long_as_it_runs(serving, start, tmp_path) -> None:
    look = tmp_path / "look"
    query = f"curl -s -H 'OpenStack-API-Version: accelerator 2.4' {serving.url}/v2/allocations"
    printed = ended(start("batch-job.sh", "dp", "sh", "-c", f"{query} >{look}; env"))
    (devices,) = (line for line in printed.splitlines() if line.startswith("CYBORG_DEVICES="))
    assert devices.startswith("CYBORG_DEVICES=0000:0c:")
    assert '"Active"' in look.read_text()
    assert allocations(serving) == []
    assert "There is no room" in refused(start("batch-job.sh", "many", "true"))
    # An address of a device means something else on every host.
    elsewhere = refused(start("batch-job.sh", "dp", "true", HOST_NAME="host-2"))
    assert "is on a host like host-2" in elsewhere


def test_a_batch_job_says_what_it_takes() -> None:
    program = EXAMPLES / "batch-job.sh"
    said = subprocess.run([str(program), "dp"], capture_output=True, text=True, check=False)
    assert said.returncode == 2
    assert said.stderr == f"usage: {program} PROFILE COMMAND...\n"


def test_a_batch_job_ends_when_its_accelerator_is_not_its_own(serving, start, tmp_path) -> None:
    begun = tmp_path / "begun"
    job = ("sh", "-c", f"touch {begun}; exec sleep 600")
    process = start("batch-job.sh", "dp", *job, LEASE="3")
    wait_for("the job", begun.exists)
    (found,) = allocations(serving)
    serving.ask("DELETE", f"/v2/allocations/{found['uuid']}", **HEADERS)
    process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + 9


def test_a_proxy_finds_what_it_has_already(serving, start, tmp_path) -> None:
    file = tmp_path / "tls.env"
    for _ in range(2):
        ended(start("tls-proxy.sh", "start", "dp", str(file)))
        name, _, devices = file.read_text().strip().partition("=")
        assert name == "TLS_OFFLOAD_DEVICES"
        assert len(devices.split()) == 2
    (found,) = allocations(serving)
    assert (found["state"], found["lease_seconds"]) == ("Active", None)
    # Somebody else may have given it back.
    serving.ask("DELETE", f"/v2/allocations/{found['uuid']}", **HEADERS)
    ended(start("tls-proxy.sh", "stop", str(file)))
    assert allocations(serving) == []
    assert not file.exists()
