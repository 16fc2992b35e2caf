# SPDX-License-Identifier: Apache-2.0
"""The references of options and of policy rules leave nothing out."""

from __future__ import annotations

import importlib
import importlib.metadata
import pathlib
import pkgutil
import re

from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg import policies
from cyborg.drivers import base

FOLDER = pathlib.Path(__file__).parents[3] / "doc" / "source" / "configuration"


def _named(page: str, directive: str) -> list[str]:
    return re.findall(rf"^\.\. {directive}:: (\w+)", (FOLDER / page).read_text(), re.MULTILINE)


def test_every_group_of_options_is_in_the_reference_once() -> None:
    groups = {group or "DEFAULT" for group, _options in cyborg_conf.list_opts()}
    assert sorted(_named("options.rst", "config-options")) == sorted(groups | {"vgpu_NAME", "NAME"})


def test_every_option_has_a_help() -> None:
    for group, options in cyborg_conf.list_opts():
        for option in options:
            assert option.help, f"[{group}] {option.dest}"


def test_every_policy_rule_is_in_the_reference_once() -> None:
    shown = [
        rule.name
        for module in _named("policy.rst", "policy-rules")
        for rule in importlib.import_module(f"cyborg.policies.{module}").list_rules()
    ]
    assert sorted(shown) == sorted(rule.name for rule in policies.list_rules())
    modules = {module.name for module in pkgutil.iter_modules(policies.__path__)}
    assert set(_named("policy.rst", "policy-rules")) == modules


#: Options in groups that are ours too, which belong to libraries, to Nova, or to a release before.
FOREIGN = {
    "api": {"api_workers"},
    "glance": {"project_name"},
    "pci": {"report_in_placement", "device_spec", "alias"},
    "DEFAULT": {"arq_binding_timeout", "control_exchange", "transport_url"},
}


def test_every_option_that_a_page_names_exists() -> None:
    known: dict[str, set[str]] = {}
    for group, options in cyborg_conf.list_opts():
        name = group or "DEFAULT"
        known.setdefault(name, set()).update(FOREIGN.get(name, ()))
        known[name] |= {option.dest for option in options}
    named, unknown = 0, set()
    for folder in ("install", "admin", "user", "reference", "cli"):
        for page in sorted((FOLDER.parent / folder).glob("*.rst")):
            for group, name in re.findall(r"``\[(\w+)\]\s+([a-z_]+)", page.read_text()):
                named += group in known
                if name not in known.get(group, {name}):
                    unknown.add((page.name, group, name))
    assert unknown == set()
    assert named > 100


_MATRIX = FOLDER.parent / "admin" / "support-matrix.rst"


def test_the_support_matrix_says_what_each_driver_can_do(conf: cfg.ConfigOpts) -> None:
    rows = re.findall(r"^   \* - ``(\w+)``\n((?:     -.*\n)+)", _MATRIX.read_text(), re.MULTILINE)
    said = {name: [bool(cell[6:].strip()) for cell in row.splitlines()] for name, row in rows}
    programmed = base.Programmable, base.Reconfigurable
    abilities = (programmed, base.Preparable, base.Cleanable, base.HealthReporting)
    known = {}
    for entry in importlib.metadata.entry_points(group="cyborg.accelerator.driver"):
        driver = entry.load()(conf)
        can = [isinstance(driver, ability) for ability in abilities]
        known[entry.name] = [True, *can]
    assert said == known
