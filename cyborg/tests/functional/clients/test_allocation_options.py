# SPDX-License-Identifier: Apache-2.0
"""``openstack accelerator allocation``: each way to ask, and text that a container takes."""

from __future__ import annotations

import argparse
import itertools
import json
import uuid
from typing import Any

import pytest
from osc_lib import exceptions

from cyborg.osc import command, containers
from cyborg.osc.api import Api
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.service import Site

pytestmark = pytest.mark.usefixtures("quiet_openstack")

NQN = "nqn.2014-08.org.nvmexpress:uuid:5b6f5d3c-2c0f-4c8b-9a55-7d1f3f0f2a11"
CDI = "cyborg.openstack.org/accelerator"


@pytest.fixture
def ready(site: Site, osc: OpenStack) -> OpenStack:
    site.start(handles_per_device=8)
    osc("device", "profile", "create", "one", "--group", "resources:FPGA=1")
    osc("device", "profile", "create", "two", "--group", "resources:FPGA=2")
    return osc


#: Words of a command, and the number of accelerators that it is given.
WAYS = [
    ("one", 1),
    ("one --count 3", 3),
    ("--group resources:FPGA=1 --group resources:FPGA=2", 3),
    ("--group resources:FPGA=2 --count 2", 4),
    ("--part profile=two --part profile=one,count=2", 4),
    ("--part resources:FPGA=2,count=2", 4),
    ("two --provider PROVIDER", 2),
    ("--part profile=two,provider=PROVIDER,hosts=*", 2),
]
#: Words that the API, or the command with its help, refuses, and what it says.
REFUSED = [
    ("--part profile=one --count 2", "Say count= and provider= in each --part."),
    ("--part profile=one,size=2", "--part: size=2 is none of profile=, count=, hosts=, "),
    ("--part profile=one,count=x", "--part: count=x is none of "),
    ("one --provider nowhere", "No deployable is called 'nowhere'; `deployable list` shows"),
    ("one --nqn x", "must be an NVMe qualified name"),
    ("one --count 0", "HTTP 400"),
    ("--shares 2", "group 0 asks for 2 CUSTOM_GPU_SHARE, and no device offers that"),
]
#: Words that do not go together.
SENSELESS = [
    "", "one --group resources:FPGA=1", "--part profile=a --group resources:FPGA=1",
    "--shares two", "--shares 2 --group resources:FPGA=1", "one --shares 2",
]


def test_each_way_to_ask(ready: OpenStack) -> None:
    (deployable,) = ready("deployable", "list")
    for (words, number), by in itertools.product(WAYS, ("name", "rp_uuid")):
        asked = words.replace("PROVIDER", deployable[by]).split()
        made = ready("allocation", "create", *asked, "--nqn", NQN)
        assert (made["state"], len(made["accelerators"])) == ("Active", number), words
        assert made["consumer"]["nqn"] == NQN
        assert made["alternative"] == (None if words.startswith("--") else 0), words
        assert {each["device_rp_uuid"] for each in made["accelerators"]} == {deployable["rp_uuid"]}
        ready.do("allocation", "delete", made["uuid"])
    for words, told in REFUSED:
        assert told in ready.refused("allocation", "create", *words.split())
    for words in SENSELESS:
        with pytest.raises(SystemExit, match=r"^2$"):
            ready.run("allocation", "create", *words.split())
    assert ready("allocation", "list") == []


def test_text_for_a_container_and_for_people(ready: OpenStack) -> None:
    made = ready("allocation", "create", "two", "--name", "j")
    for words in (["show", "j"], ["list", "--long"]):
        told = ready.run("allocation", *words).out
        assert not set('{["') & set(told)
        for each in made["accelerators"]:
            assert f"arq_uuid = {each['arq_uuid']}" in told
    shown = ready.run("allocation", "show", "j").out
    assert all(words in shown for words in ("- arq_uuid", "consumer", "name = j"))
    printed = ready.run("allocation", "show", "j", "--env").out.splitlines()
    infos = [each["attach_handle_info"] for each in made["accelerators"]]
    places = ",".join("0000:{bus}:00.{function}".format(**info) for info in infos)
    assert printed[:4] == [
        f"CYBORG_ALLOCATION={made['uuid']}",
        f"CYBORG_HOST={made['hosts'][0]}",
        f"CYBORG_DEVICES={places}",
        "CYBORG_CDI_DEVICES=",
    ]
    assert "[agent] cdi_dir is not set there" in ready.refused("allocation", "show", "j", "--cdi")
    assert "one of host-" in ready.refused("allocation", "show", "j", "--env", "--on", "nowhere")
    (env,) = ready("allocation", "create", "one", "--env").values()
    assert env.startswith("CYBORG_ALLOCATION=")
    told = ready.refused("allocation", "create", "one", "--dry-run", "--env")
    assert "is Possible: nothing can be used of it" in told
    twins = [ready("allocation", "create", "one", "--name", "twin")["uuid"] for _ in range(2)]
    told = ready.refused("allocation", "delete", "twin")
    assert all(uuid in told for uuid in twins)


def test_the_wait_for_an_allocation(ready: OpenStack, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ready.run("allocation", "create", "one", "--wait", "-f", "json")
    made = json.loads(answer.out)
    assert (made["state"], answer.err) == ("Active", f"Allocation {made['uuid']} is Active\n")

    def interrupted(_api: Any, _path: str) -> Any:
        yield allocation("Binding")
        raise KeyboardInterrupt

    monkeypatch.setattr(Api, "looks", interrupted)
    with pytest.raises(exceptions.CommandError, match="goes on; `allocation show"):
        containers.ready(Api.__new__(Api), allocation("Binding"))


class _Answering:
    """An API that answers with these allocations, one after the other."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = answers

    def looks(self, path: str) -> Any:
        assert path.startswith("/allocations/")
        return iter(self._answers)


def allocation(state: str = "Active", **more: str) -> dict[str, Any]:
    own = [
        {"hostname": f"host-{number}", "attach_handle_info": {"cdi_device": name, **more}}
        for number, name in enumerate((f"{CDI}=0", f"{CDI}=1"))
    ]
    return {
        "uuid": str(uuid.uuid4()), "state": state, "state_reason": "There \x1b is none.",
        "hosts": ["host-0", "host-1"], "accelerators": own,
    }


def text(given: dict[str, Any], *words: str, then: tuple[dict[str, Any], ...] = ()) -> str:
    parser = argparse.ArgumentParser()
    containers.add_options(parser)
    api: Any = _Answering(*then)
    return containers.text(api, given, parser.parse_args(words))


def test_names_are_those_of_one_host_when_all_is_ready() -> None:
    waited = (allocation("Binding"), allocation())
    assert text(allocation("Claiming"), "--cdi", "--on", "host-1", then=waited) == f"{CDI}=1"
    with pytest.raises(Exception, match="one of host-0, host-1"):
        text(allocation(), "--cdi")
    with pytest.raises(Exception, match=r"is Failed: There \\x1b is none"):
        text(allocation("Claiming"), "--cdi", then=(allocation("Failed"),))


def test_an_env_file_holds_no_order() -> None:
    lines = text(allocation(path="platform/x/accel0"), "--env", "--on", "host-0").splitlines()
    assert lines[2:] == [
        "CYBORG_DEVICES=", f"CYBORG_CDI_DEVICES={CDI}=0", "CYBORG_DEVICE_0_PATH=platform/x/accel0"
    ]
    for value in ("$(id)", "a b", "a\nLD_PRELOAD=x", "'", "\\"):
        with pytest.raises(Exception, match="CYBORG_DEVICE_0_PATH has characters"):
            text(allocation(path=value), "--env", "--on", "host-0")
    with pytest.raises(Exception, match="has characters"):
        text(allocation(**{"a\nb": "c"}), "--env", "--on", "host-0")


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (["a", "b"], ["a", "b"]),
        ({"uuid": "u", "name": None, "type": "X"}, ["uuid = u", "type = X"]),
        ([{"resources:FPGA": "1"}], ["resources:FPGA = 1"]),
        ([{"a": 1, "b": True}, {}, {"a": 2}], ["- a = 1", "  b = true", "- a = 2"]),
        ({"x": {"y": {"z": "1\n\x1b"}}}, ["x.y.z = 1\\n\\x1b"]),
        ({"domain": "0000", "bus": "0c", "device": "0", "function": "1"}, ["0000:0c:00.1"]),
        ([], [""]),
    ],
)
def test_lines_for_people(value: Any, lines: list[str]) -> None:
    assert command.Nested(value).human_readable().split("\n") == lines
