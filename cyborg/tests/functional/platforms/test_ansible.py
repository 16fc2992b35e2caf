# SPDX-License-Identifier: Apache-2.0
"""The Ansible collection, with the real Ansible, against ``cyborg-standalone``."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from cyborg.tests.standalone_site import HOST, Site, wait_for

pytestmark = pytest.mark.slow

COLLECTION = pathlib.Path(__file__).parents[4] / "contrib" / "ansible"
PATIENCE = 300
NAME = f"{HOST}_FakeDevice"

#: What the example does not: changes, and the way back.
LATER: list[dict[str, Any]] = [
    {
        "cyborg.accelerator.accelerator_pool": {
            "name": "aes", "function_id": "aes-128", "free": 3, "max_devices": 4,
            "traits": ["CUSTOM_B", "CUSTOM_A", "CUSTOM_B"],
        }
    },
    {
        "cyborg.accelerator.accelerator_profile": {
            "name": "aes", "groups": [{"resources:FPGA": 1}], "projects": ["p", "o", "p"],
            "enabled": False,
        }
    },
    {"cyborg.accelerator.accelerator_device": {"device": NAME, "enabled": True, "tainted": True}},
]  # fmt: skip
LAST: list[dict[str, Any]] = [
    {"cyborg.accelerator.accelerator_pool": {"name": "aes", "state": "absent"}},
    {"cyborg.accelerator.accelerator_profile": {"name": "aes", "state": "absent"}},
    {"cyborg.accelerator.accelerator_device": {"device": NAME, "tainted": False}},
]


def described(owner: str) -> dict[str, Any]:
    """A task that gives the profile a description for people."""
    fields = {"name": "aes", "groups": [{"resources:FPGA": 1}], "extra": {"owner": owner}}
    return {"cyborg.accelerator.accelerator_profile": fields}


class Ansible:
    """``ansible-playbook`` with the collection of this checkout."""

    def __init__(self, folder: pathlib.Path, endpoint: str) -> None:
        place = folder / "collections" / "ansible_collections" / "cyborg"
        place.mkdir(parents=True)
        (place / "accelerator").symlink_to(COLLECTION)
        self._folder = folder
        nothing = {name: value for name, value in os.environ.items() if not name.startswith("OS_")}
        self._variables = nothing | {
            "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
            "OS_AUTH_TYPE": "none",
            "OS_ENDPOINT": endpoint,
            "LC_ALL": "C.UTF-8",
        }

    def run(self, playbook: pathlib.Path, *options: str) -> tuple[list[str], str]:
        """How each task ended that was not skipped, and all that was printed."""
        program = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
        done = subprocess.run(
            [program, str(playbook), *options],
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        ends = re.findall(r"^(ok|changed|fatal): \[localhost\]", done.stdout, re.MULTILINE)
        return ends, done.stdout + done.stderr

    def changed(self, playbook: pathlib.Path, *options: str) -> list[bool]:
        """Whether each task has changed something; all must do well."""
        ends, said = self.run(playbook, *options)
        assert "fatal" not in ends, said
        return [end == "changed" for end in ends]

    def written(self, tasks: list[dict[str, Any]]) -> pathlib.Path:
        """A playbook of these tasks."""
        path = self._folder / "tasks.yml"
        path.write_text(
            json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}])
        )
        return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Each test leaves it as it was."""
    state = tmp_path_factory.mktemp("state")
    standalone = Site(state, "[fake_driver]\nprogram_mode = dynamic\n")
    with standalone.serve():
        wait_for("the device", lambda: rows(standalone, "devices"))
        yield standalone


def rows(site: Site, collection: str) -> list[dict[str, Any]]:
    """A collection of the API."""
    version = {"OpenStack-API-Version": "accelerator 2.4"}
    answer = requests.get(f"{site.url}/v2/{collection}", headers=version, timeout=PATIENCE)
    found: list[dict[str, Any]] = answer.json()[collection]
    return found


@pytest.fixture
def ansible(site: Site, tmp_path: pathlib.Path) -> Ansible:
    return Ansible(tmp_path / "ansible", f"{site.url}/v2")


def test_the_example_and_its_way_back(site: Site, ansible: Ansible) -> None:
    example, device = COLLECTION / "playbooks" / "fpgas.yml", ("--extra-vars", f"device={NAME}")
    assert ansible.changed(example, *device, "--check") == [True, True, True]
    assert rows(site, "function_pools") == []
    assert ansible.changed(example, *device) == [True, True, True]
    assert ansible.changed(example, *device) == [False, False, False]
    (found,) = rows(site, "devices")
    assert (found["status"], found["disabled_reason"]) == ("maintaining", "fan replaced")
    (pool,) = rows(site, "function_pools")
    assert (pool["function_id"], pool["free"], pool["max_devices"]) == ("aes-128", 2, 4)

    # A second time none of them changes anything.
    later = ansible.written([described("one"), described("two"), *LATER, *LATER])
    assert ansible.changed(later) == [True] * 5 + [False] * 3
    (found,) = rows(site, "devices")
    assert (found["status"], found["tainted"]) == ("enabled", True)
    (profile,) = rows(site, "device_profiles")
    assert (profile["visibility"], profile["projects"]) == ("private", ["o", "p"])
    assert (profile["enabled"], profile["description"]) == (False, None)
    # What a task does not name is kept.
    assert profile["extra"] == {"owner": "two"}

    last = ansible.written([*LAST, *LAST])
    assert ansible.changed(last) == [True] * 3 + [False] * 3
    assert rows(site, "device_profiles") == []


def test_what_the_server_refuses_is_a_sentence(ansible: Ansible) -> None:
    wrong = {"name": "x", "function_id": "f", "free": 1, "max_devices": 0}
    unknown = {"device": "nobody", "enabled": True}
    tasks = [
        {"cyborg.accelerator.accelerator_pool": wrong, "ignore_errors": True},
        {"cyborg.accelerator.accelerator_device": unknown, "ignore_errors": True},
    ]
    ends, said = ansible.run(ansible.written(tasks))
    assert ends == ["fatal", "fatal"]
    first, second = re.findall(r"^fatal: \[localhost\].*(?:\n .*)*", said, re.MULTILINE)
    assert "max_devices" in first
    assert "No deployable has the name 'nobody'" in second
