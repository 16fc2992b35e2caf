# SPDX-License-Identifier: Apache-2.0
"""The page for Python users: its code runs from beginning to end, with openstacksdk as it is."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from typing import Any

import pytest
import yaml

from cyborg.tests.servers import REPOSITORY

PAGE = REPOSITORY / "doc" / "source" / "user" / "python.rst"
_BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)

pytestmark = pytest.mark.filterwarnings("ignore::openstack.warnings.RemovedInSDK50Warning")


@pytest.mark.usefixtures("quiet_openstack")
def test_its_code_runs(site, tmp_path, monkeypatch) -> None:
    site.start()
    profile = {"name": "fpga", "groups": [{"resources:FPGA": "1"}]}
    site.call("POST", "/device_profiles", [profile])
    clouds = {"mycloud": {"auth_type": "none", "auth": {"endpoint": site.endpoint}}}
    file = tmp_path / "clouds.yaml"
    file.write_text(yaml.safe_dump({"clouds": clouds}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
    known: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as output:
        for block in _BLOCK.findall(PAGE.read_text()):
            exec(textwrap.dedent(block), known)
    profile_line, given, device, groups, error = output.getvalue().splitlines()
    assert profile_line.startswith("fpga [{")
    assert given.startswith("host-1.example {'bus'")
    assert known["allocation"]["state"] == "Active"
    assert device.startswith("FPGA ")
    assert groups == "[{'resources:FPGA': '1'}]"
    assert re.fullmatch(r"Allocation not found with uuid=\S+ req-\S+", error)
    site.hurry(lambda: not site.held())
