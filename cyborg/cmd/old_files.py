# SPDX-License-Identifier: Apache-2.0
"""The fate of each line of an operator's files: ``cyborg-status upgrade check --lines``."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from oslo_config import cfg
from oslo_policy import policy

from cyborg import conf as cyborg_conf
from cyborg.api import app
from cyborg.cmd import known_options
from cyborg.conf import obsolete
from cyborg.policy import rules

_SECTION = re.compile(r"\[(?P<name>[^\]]+)\]")
_OPTION = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)\s*[=:]")
_RULE = re.compile(r"""["']?(?P<name>[A-Za-z0-9_:]+)["']?\s*:""")

_USED = "is used as it is"
#: Options that are used, but otherwise than by the released upstream, by group and name.
_OTHERWISE = {
    ("oslo_policy", "enforce_new_defaults"): "has no effect: rules have only their new defaults",
    ("agent", "enabled_drivers"): f"{_USED}; cyborg-agent discover shows what they find",
}


def lines(conf: cfg.ConfigOpts) -> Iterator[str]:
    """A sentence for each option, paste section and policy rule, with its file and line."""
    for file in map(pathlib.Path, cyborg_conf.files(conf)):
        yield from _options(conf, file)
    path = app.paste_file(conf)
    if path != app.SHIPPED_PASTE_FILE:
        yield from _sections(conf, path)
    for name in (conf.oslo_policy.policy_file, *conf.oslo_policy.policy_dirs):
        found = pathlib.Path(conf.find_file(name) or "/dev/null")
        for file in sorted(found.iterdir()) if found.is_dir() else [found]:
            # oslo.policy passes over the others too.
            if not (file.is_dir() or file.name.startswith(".")):
                yield from _rules(conf, file)


def _options(conf: cfg.ConfigOpts, path: pathlib.Path) -> Iterator[str]:
    names, group = known_options.names(conf), "DEFAULT"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if section := _SECTION.match(line):
            group = section["name"].strip()
        elif option := _OPTION.match(line):
            name = option["name"].replace("-", "_")
            becomes = _becomes(conf, names, group, name)
            yield f"{path}:{number}: [{group}] {name} {becomes}."


def _becomes(
    conf: cfg.ConfigOpts, names: dict[tuple[str, str], tuple[str, str]], group: str, name: str
) -> str:
    why = obsolete.OBSOLETE.get(None if group == "DEFAULT" else group, {}).get(name)
    if why is not None:
        return f"means nothing and can be removed: {why}"
    if (group, name) in _OTHERWISE:
        return _OTHERWISE[group, name]
    now = names.get((group, name))
    if now is None:
        is_known = known_options.is_of_a_device(conf, group, name)
        return _USED if is_known else "is not read by this release"
    return _USED if now == (group, name) else f"is read as [{now[0]}] {now[1]}"


def _sections(conf: cfg.ConfigOpts, path: pathlib.Path) -> Iterator[str]:
    if app.is_of_another_cyborg(path):
        becomes = f"is passed over: {app.SHIPPED_PASTE_FILE} is used"
    elif app.is_usable(path, conf.api.auth_strategy):
        becomes = _USED
    else:
        becomes = f"stops the API: the file has no pipeline {conf.api.auth_strategy}"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if section := _SECTION.match(line):
            yield f"{path}:{number}: [{section['name']}] {becomes}."


def _rules(conf: cfg.ConfigOpts, path: pathlib.Path) -> Iterator[str]:
    defaults = {rule.name: rule.check_str for rule in rules.list_rules()}
    enforcer = policy.Enforcer(conf)
    try:
        enforcer.load_rules()
    except Exception as exc:  # noqa: BLE001 - errors of the YAML parser, or of what is no rule
        yield f"{path}:1: the file cannot be read, which stops the API: {exc}"
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        rule = _RULE.match(line)
        if rule and rule["name"] in enforcer.file_rules:
            name, check = rule["name"], enforcer.file_rules[rule["name"]].check_str
            if name not in defaults:
                becomes = "is no rule of this release: it matters only to rules of your own"
            elif check == defaults[name]:
                becomes = "is the default, and can be removed"
            else:
                becomes = f"replaces the default, which is {defaults[name]!r}"
            yield f"{path}:{number}: {name} {becomes}."
