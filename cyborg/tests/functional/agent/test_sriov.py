# SPDX-License-Identifier: Apache-2.0
"""Physical functions get the virtual ones that the operator wants, and no others are touched."""

from __future__ import annotations

import functools
import json
import threading
from typing import Any

import pytest
from oslo_config import cfg

from cyborg.agent import sriov
from cyborg.drivers import pci, privileged
from cyborg.tests import watched_agent
from cyborg.tests.contract import passes
from cyborg.tests.privileged_acts import act, unbind

PATIENCE = 60
NVME, NIC = "nvme-pm1733", "e810"


def settle(*rules: dict[str, Any], times: int = 1) -> dict[str, str]:
    """Have one keeper settle the host so many times; what the last time said."""
    keeper = sriov.Configurator(configuration(*rules), threading.Lock())
    return [keeper.apply() for _ in range(times)][-1]


def settle_around_a_layout(*rules: dict[str, Any]) -> list[int]:
    """How many virtual functions the host has while a layout is changed, and after that."""
    changes, found = threading.Lock(), []
    keeper = sriov.Configurator(configuration(*rules), changes)
    with changes:
        assert keeper.apply() == {}
        found.append(len([each for each in pci.scan().values() if each.pf is not None]))
    assert keeper.apply() == {}
    found.append(len([each for each in pci.scan().values() if each.pf is not None]))
    return found


def preview(*rules: dict[str, Any]) -> list[str]:
    return sriov.preview(configuration(*rules))


def configuration(*rules: dict[str, Any]) -> cfg.ConfigOpts:
    privileged.context.set_client_mode(False)
    lines = "".join(f"sriov_spec = {json.dumps(rule)}\n" for rule in rules)
    text = f"[agent]\ndriver_timeout = {PATIENCE}\n{lines}"
    return passes.configured(text, [], "host-1")


@pytest.fixture
def host(simulate_live):
    return simulate_live({"cards": [NVME, {"card": NVME, "name": "other"}, NIC]})


def test_a_function_that_may_be_a_bridge_costs_no_other_its_virtual_functions(simulate):
    odd = {"card": NVME, "name": "odd", "class": "068000"}
    simulated = simulate({"cards": [odd, NIC]})
    simulated.files.unlink(f"{simulated.path(simulated.card('odd'))}/config")
    rules = [{"address": simulated.card(name), "numvfs": 3} for name in ("odd", NIC)]

    done, left = simulated.call(preview, *rules)

    assert done == f"{simulated.card(NIC)} gets 3 virtual functions"
    assert left.startswith(f"{simulated.card('odd')} is left alone: it cannot be told")


def vfs(host: Any, card: str) -> list[str]:
    links = sorted(host.device(host.card(card)).glob("virtfn*"))
    return [link.readlink().name for link in links]


def drivers(host: Any, card: str) -> list[str | None]:
    links = [host.device(vf) / "driver" for vf in vfs(host, card)]
    return [link.readlink().name if link.is_symlink() else None for link in links]


def test_only_what_is_named_gets_virtual_functions(host):
    rule = {"address": host.card(NIC), "numvfs": 3}

    assert host.call(preview, rule) == [f"{host.card(NIC)} gets 3 virtual functions"]
    assert host.writes() == []
    assert host.call(settle, rule) == {}

    assert drivers(host, NIC) == ["iavf"] * 3
    assert vfs(host, NVME) == vfs(host, "other") == []
    assert host.call(preview, rule) == []

    # More than a card can have is said.
    written = len(host.writes())
    said = host.call(settle, {"address": host.card(NVME), "numvfs": 33})
    sentence = f"{host.card(NVME)}: it can have 32 virtual functions, not 33"
    assert said == {sriov.NAME: sentence}
    assert len(host.writes()) == written


def test_a_function_that_a_guest_has_given_back_is_bound_again_and_no_other(host):
    rule = {"address": host.card(NVME), "numvfs": 3, "vf_driver": "vfio-pci"}
    assert host.call(settle, rule) == {}
    # The host's drivers are kept from them.
    assert drivers(host, NVME) == ["vfio-pci"] * 3
    probing = host.device(host.card(NVME)) / "sriov_drivers_autoprobe"
    assert probing.read_text().strip() == "0"
    free, used, _ = vfs(host, NVME)
    host.call(unbind, free)
    host.call(act, "bind_driver", used, "nvme")

    assert host.call(settle, rule) == {}

    assert drivers(host, NVME) == ["vfio-pci", "nvme", "vfio-pci"]


def test_all_are_as_many_as_there_can_be_and_the_first_rule_counts(host):
    rules = [
        {"address": host.card(NVME), "numvfs": 1},
        {"vendor_id": "144d", "numvfs": "all"},
    ]

    assert host.call(settle, *rules) == {}

    assert len(vfs(host, NVME)) == 1
    assert len(vfs(host, "other")) == 32


def test_a_number_is_not_changed_while_anybody_may_have_a_function(host):
    address = host.card(NIC)
    host.call(settle, {"address": address, "numvfs": 2})
    before = len(host.writes())

    said = host.call(settle, {"address": address, "numvfs": 4})

    assert len(vfs(host, NIC)) == 2
    assert said[sriov.NAME].startswith(f"{address}: [Errno 16] {vfs(host, NIC)[0]} may be in use")
    assert "driver iavf of the host has it" in said[sriov.NAME]
    assert len(host.writes()) == before

    for vf in vfs(host, NIC):
        host.call(unbind, vf)

    assert host.call(settle, {"address": address, "numvfs": 4}) == {}
    assert len(vfs(host, NIC)) == 4


def test_what_was_refused_is_not_tried_at_every_pass_but_stays_said(host):
    other, address = host.card("other"), host.card(NVME)
    # It has no driver that could make any.
    host.call(unbind, address)
    rules = [{"vendor_id": "144d", "numvfs": 2}]

    said = host.call(functools.partial(settle, times=50), *rules)

    assert list(said) == [sriov.NAME]
    assert said[sriov.NAME].startswith(f"{address}: ")
    assert other not in said[sriov.NAME]
    tried = [path for path, _ in host.writes() if path.endswith("sriov_numvfs")]
    assert len(tried) < 25
    assert len(vfs(host, "other")) == 2


def test_nothing_is_changed_in_the_middle_of_a_change_of_a_layout(host):
    rule = {"address": host.card(NVME), "numvfs": 2}

    assert host.call(settle_around_a_layout, rule) == [0, 2]


def test_a_card_that_the_host_uses_is_left_alone(simulate):
    host = simulate({"cards": [{"card": NIC, "name": "uplink"}], "default_route": "ens1f0"})
    address, rule = host.card("uplink"), {"vendor_id": "8086", "numvfs": 2}

    assert host.call(settle, rule) == {}

    assert host.files.read(f"{host.path(address)}/sriov_numvfs") == "0"
    (sentence,) = host.call(preview, rule)
    assert sentence.startswith(f"{address} is left alone: the host's network interface ens1f0")


def test_the_agents_first_report_has_the_functions_already(host, tmp_path):
    options = (
        'sriov_spec = {"vendor_id": "8086", "numvfs": 2, "vf_driver": "vfio-pci"}\n'
        '[pci]\ndevice_spec = {"vendor_id": "8086", "product_id": "1889"}\n'
    )
    with watched_agent.reports(host, tmp_path, options) as reports:
        assert next(reports) == [f"host-1_{vf}" for vf in vfs(host, NIC)]
        assert drivers(host, NIC) == ["vfio-pci"] * 2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON"),
        ("4", "must be an object with one of"),
        ('{"numvfs": 4}', "must be an object with one of"),
        ('{"address": "0000:01:00.0"}', 'numvfs must be a number or "all"'),
        ('{"address": "0000:01:00.0", "numvfs": true}', "numvfs must be"),
        ('{"address": "0000:01:00.0", "numvfs": -1}', "numvfs must be"),
        ('{"address": "0000:01:00.0", "numvfs": 1, "vf_driver": 1}', "vf_driver must be"),
        ('{"address": "0000:01:00.0", "numvfs": 1, "resource_class": "X"}', "mean nothing"),
        ('{"address": "0000:zz:00.0", "numvfs": 1}', "wrong bus"),
    ],
)
def test_a_wrong_rule_is_reported_and_keeps_nobody_from_reporting(conf, text, sentence):
    conf.set_override("sriov_spec", [text], group="agent")

    said = sriov.Configurator(conf, threading.Lock()).apply()

    assert sentence in said[sriov.NAME]
    assert "[agent] sriov_spec" in said[sriov.NAME]
