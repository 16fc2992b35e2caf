# SPDX-License-Identifier: Apache-2.0
"""The references of options and of policy rules leave nothing out."""

from __future__ import annotations

import ast
import csv
import importlib
import importlib.metadata
import json
import pathlib
import pkgutil
import re
import subprocess
import sys
from typing import Any

from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.audits import differences
from cyborg.cmd import known_options
from cyborg.conf import privileged
from cyborg.drivers import base
from cyborg.drivers import privileged as helpers
from cyborg.policy import rules

FOLDER = pathlib.Path(__file__).parents[4] / "doc" / "source" / "configuration"


def _named(page: str, directive: str) -> list[str]:
    return re.findall(rf"^\.\. {directive}:: (\w+)", (FOLDER / page).read_text(), re.MULTILINE)


def test_every_group_of_options_is_in_the_reference_once() -> None:
    groups = {group or "DEFAULT" for group, _options in cyborg_conf.list_opts()}
    assert sorted(_named("options.rst", "config-options")) == sorted(
        groups | {"vgpu_NAME", "nvmf_spdk_NAME", "NAME"}
    )


def test_every_option_of_the_privileged_helpers_is_in_the_reference() -> None:
    text = (FOLDER / "options.rst").read_text()
    for group, options in privileged.list_opts():
        _before, _title, section = text.partition(f"[{group}]")
        section = section.partition("\n[")[0]
        assert [option.dest for option in options if f"``{option.dest}``" not in section] == []
    contexts = (helpers.context, helpers.erasing, helpers.programming, helpers.watching)
    assert {each.cfg_section for each in contexts} == set(privileged.GROUPS)


def test_the_sample_has_the_options_of_everybody() -> None:
    text = (FOLDER.parents[2] / "etc" / "cyborg" / "config-generator.conf").read_text()
    named = set(re.findall(r"^namespace = (.+)$", text, re.MULTILINE))
    assert named == known_options.LIBRARIES | {"cyborg", "cyborg.privileged"}


def test_every_option_has_a_help() -> None:
    for group, options in cyborg_conf.list_opts():
        for option in options:
            assert option.help, f"[{group}] {option.dest}"


def test_every_policy_rule_is_in_the_reference_once() -> None:
    shown = [
        rule.name
        for module in _named("policy.rst", "policy-rules")
        for rule in importlib.import_module(f"cyborg.policy.rules.{module}").RULES
    ]
    assert sorted(shown) == sorted(rule.name for rule in rules.list_rules())
    modules = {module.name for module in pkgutil.iter_modules(rules.__path__)}
    assert set(_named("policy.rst", "policy-rules")) == modules


#: Prints the group and name of each option of a real Nova.
_NOVA = """\
import json
from nova.conf import opts
print(json.dumps([(str(g or "DEFAULT"), one.dest) for g, each in opts.list_opts() for one in each]))
"""


def _options_of_nova() -> set[tuple[str, str]]:
    """In a process of its own, as Nova registers them in the one global configuration."""
    listed = subprocess.check_output([sys.executable, "-W", "ignore", "-c", _NOVA], text=True)
    return {(group, name) for group, name in json.loads(listed)}


def test_every_option_that_a_help_or_a_page_names_is_in_that_group(conf: cfg.ConfigOpts) -> None:
    """Those of Nova, too: who looks for one in another group sets nothing."""
    ours, nova = set(known_options.names(conf)), _options_of_nova()
    groups = {group for group, _name in ours}
    texts = {
        f"[{group}] {option.dest}": option.help or ""
        for group, options in cyborg_conf.GROUPS.items()
        for option in options
    }
    for page in sorted(FOLDER.parent.rglob("*.rst")):
        texts[str(page.relative_to(FOLDER.parent))] = page.read_text()
    named, wrong = 0, set()
    for place, text in texts.items():
        words = " ".join(str(text).split())
        for whose, mark, group, name in re.findall(r"(Nova's )?(``)?\[(\w+)\] ([a-z_]+)\b", words):
            named += 1
            if group.startswith(("nvmf_spdk_", "vgpu_")):
                # The operator has named it.
                continue
            known = nova if whose else ours | nova
            # Without marks it may be a word of the sentence.
            is_of_ours = bool(mark and group in groups) or name in {of for _group, of in known}
            if (group, name) not in known and is_of_ours:
                wrong.add((place, f"{whose}[{group}] {name}"))
    assert wrong == set()
    assert named > 150


#: What pages call a default, in their order: what they say, and the option that it is of. None
#: stands for what is not an option of ours.
DEFAULTS: dict[str, list[tuple[str, str | None]]] = {
    "admin/backup": [("``/var/lib/cyborg``", "DEFAULT.state_path")],
    "admin/capacity": [("60 seconds", "agent.report_interval")],
    "admin/drivers": [
        ("empty", "agent.enabled_drivers"),
        ("none", "gpu_devices.unhealthy_xids"),
    ],
    "admin/hosts": [("``off``", "cleaning.default")],
    "admin/monitoring": [("``notifications``", None)],
    "admin/nova-scheduling": [
        ("1", "cyborg_weigher.multiplier"),
        ("2", "cyborg_weigher.timeout"),
        ("30", "cyborg_weigher.pause"),
        ("300", None),
        ("240", "conductor.bind_deadline"),
    ],
    "admin/programming": [("240 seconds", "conductor.bind_deadline")],
    "admin/release-notes": [("empty", "agent.enabled_drivers")],
    "admin/what-died": [
        ("180", "conductor.host_down_time"),
        # Twenty times that.
        ("an hour", None),
        ("5 seconds", None),
        ("a day", "conductor.arq_expiry"),
        ("an hour", "conductor.instance_grace"),
        ("30 seconds", "conductor.allocation_audit_interval"),
        ("90 days", "conductor.history_expiry"),
        ("an hour", "conductor.placement_audit_interval"),
    ],
    "configuration/policy": [("``service``", None)],
    "install/devstack": [("``fake_driver``", None), ("1", None)],
    "install/production": [("``cyborg``", "DEFAULT.rpc_exchange")],
    "install/standalone": [("``fake_driver``", None)],
    "reference/api-microversion-history": [("2.0", None), ("``public``", None)],
    "reference/cyborg-status": [("10", "settle")],
}
_VALUE = r"(``[^`]+``|an? (?:hour|day)|\d+(?:\.\d+)?(?: (?:seconds|days))?)"
_DEFAULT = re.compile(
    rf"\bby default,?(?: after)? {_VALUE}|(``\w+``|\d+),? by default(?=[).,])|"
    rf"\bdefault is {_VALUE}|\bdefault of {_VALUE}|(``\w+``), the default|; default {_VALUE}|"
    r"(empty|none) by default"
)
_WEIGHER = FOLDER.parents[2] / "cyborg" / "nova" / "weigher.py"
#: As in ``(``aer_fatal_errors``, 1)``.
_IN_BRACKETS = re.compile(r"\(``(?:\[(\w+)\] )?(\w+)``, (\d+)\)")


def _defaults() -> dict[str, Any]:
    known = {
        f"{group or 'DEFAULT'}.{option.dest}": option.default
        for group, options in cyborg_conf.list_opts()
        for option in options
    }
    # Not imported, since it makes Nova's options those of the process.
    for node in ast.walk(ast.parse(_WEIGHER.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="FloatOpt" | "IntOpt"), args=[name]):
                (default,) = (each.value for each in node.keywords if each.arg == "default")
                known[f"cyborg_weigher.{ast.literal_eval(name)}"] = ast.literal_eval(default)
    return {**known, "settle": differences.SETTLE}


def _value(said: str) -> object:
    """What a default must be that a page gives as ``said``."""
    if said in {"empty", "none"}:
        return []
    if said.startswith("``"):
        return said.strip("`")
    number, _, unit = re.sub("^an? ", "1 ", said).partition(" ")
    return float(number) * {"": 1, "seconds": 1, "hour": 3600, "day": 86400, "days": 86400}[unit]


def test_defaults_that_pages_name_are_true() -> None:
    known, found = _defaults(), dict[str, list[str]]()
    for path in sorted(FOLDER.parent.rglob("*.rst")):
        page, text = str(path.relative_to(FOLDER.parent))[:-4], " ".join(path.read_text().split())
        said = [next(filter(None, match.groups())) for match in _DEFAULT.finditer(text)]
        if said:
            found[page] = said
        for group, name, value in _IN_BRACKETS.findall(text):
            assert known[f"{group or 'pci_health'}.{name}"] == int(value), (page, name)
    assert found == {page: [said for said, _of in each] for page, each in DEFAULTS.items()}
    for page, each in DEFAULTS.items():
        for words, of in each:
            if of is not None:
                assert known[of] == _value(words), (page, words, of)


_MATRIX = FOLDER.parent / "admin" / "support-matrix.rst"


def test_the_support_matrix_says_what_each_driver_can_do(conf: cfg.ConfigOpts) -> None:
    rows = csv.reader(re.findall(r"^   (``\w+``,.*)$", _MATRIX.read_text(), re.MULTILINE))
    said = {name.strip("`"): [bool(cell) for cell in row] for name, *row in rows}
    programmed = base.Programmable, base.Reconfigurable
    abilities = (programmed, base.Preparable, base.Cleanable, base.HealthReporting)
    known = {}
    for entry in importlib.metadata.entry_points(group="cyborg.accelerator.driver"):
        driver = entry.load()(conf)
        can = [isinstance(driver, ability) for ability in abilities]
        known[entry.name] = [True, *can]
    assert said == known
