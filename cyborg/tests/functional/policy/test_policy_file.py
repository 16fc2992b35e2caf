# SPDX-License-Identifier: Apache-2.0
"""The operator's policy file: what it can change, and what it cannot."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
import yaml
from oslo_config import cfg
from oslo_policy import generator, opts
from oslo_policy import policy as oslo_policy

from cyborg.api import app
from cyborg.policy import rules
from cyborg.policy.enforcer import UnreadableRules
from cyborg.tests import asks
from cyborg.tests.asks import REQUESTS
from cyborg.tests.personas import PROJECTS
from cyborg.tests.scene import Scene
from cyborg.tests.servers import REPOSITORY

#: Of contract and so of policy files in the field, besides those of the requests.
BLOCKS = {
    *("admin_api", "project_admin_api", "project_manager_api", "project_member_api"),
    *("project_reader_api", "service_api", "project_reader_or_admin", "project_member_or_admin"),
    *("project_manager_or_admin", "project_member_or_service", "public_api", "allow", "deny"),
    *("default", "is_admin", "admin_or_owner", "admin_or_user"),
}
GENERATOR = REPOSITORY / "etc" / "cyborg" / "policy-generator.conf"
OF_HORIZON = REPOSITORY / "cyborg_dashboard" / "default_policies.yaml"


class PolicyFile:
    """The file that the API reads."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._time = 0

    def write(self, text: str) -> None:
        """Give the file another content, at a later time than before on any file system."""
        self.path.write_text(text)
        self._time += 10
        os.utime(self.path, (self._time, self._time))

    def define(self, rules: dict[str, str]) -> None:
        """Give the file these rules and no others."""
        self.write(yaml.safe_dump(rules))


@pytest.fixture
def policy_file(conf: cfg.ConfigOpts, tmp_path: pathlib.Path) -> PolicyFile:
    """An empty one. Tests ask for it before the scene, whose API then reads it."""
    file = PolicyFile(tmp_path / "rules.yaml")
    file.define({})
    opts.set_defaults(conf)
    conf.set_override("policy_file", str(file.path), group="oslo_policy")
    return file


def outcome(scene: Scene, persona: str, what: str, project: str = "own") -> str:
    return asks.send(scene, persona, REQUESTS[what], project).outcome


def test_it_is_obeyed_as_soon_as_it_changes(policy_file: PolicyFile, scene: Scene) -> None:
    assert outcome(scene, "reader", "device:get_all") == "403"
    policy_file.define({"cyborg:device:get_all": "rule:project_reader_or_admin"})
    assert outcome(scene, "reader", "device:get_all") == "ok"
    assert outcome(scene, "reader", "device:get_one") == "403"
    policy_file.define({"project_manager_api": "role:reader and project_id:%(project_id)s"})
    assert outcome(scene, "reader", "device:get_one") == "ok"
    assert outcome(scene, "=manager", "device:get_one") == "403"
    policy_file.define({})
    assert outcome(scene, "reader", "device:get_one") == "403"


def test_no_rule_opens_what_belongs_to_other_projects(policy_file, scene) -> None:
    policy_file.define({rule.name: "@" for rule in rules.list_rules() if ":" in rule.name})
    owned = [what for what, ask in REQUESTS.items() if ask.owned]
    came = {
        what: tuple(outcome(scene, "guest", what, project) for project in PROJECTS)
        for what in owned
    }
    # Others' things are left out of lists, and otherwise do not exist.
    lists = {what for what in owned if "get_all" in what or what == "arq:delete instance"}
    for_all = {what for what in owned if "all_projects" in what} | {"arq:update project"}
    assert len(owned) == 28
    assert came == (
        dict.fromkeys(owned, ("ok", "404"))
        | dict.fromkeys(lists, ("ok", "-"))
        | dict.fromkeys(for_all, ("403", "403"))
    )


def test_no_rule_is_for_tokens_that_are_for_no_project(policy_file, scene) -> None:
    policy_file.define({rule.name: "@" for rule in rules.list_rules()})
    for persona in ("system-admin", "domain-admin", "unscoped"):
        came = {what: outcome(scene, persona, what) for what in REQUESTS}
        assert came == dict.fromkeys(REQUESTS, "403")


def test_it_says_who_acts_on_all_projects_and_what_is_looked_at(policy_file, scene) -> None:
    policy_file.define({"admin_api": "role:guest"})
    assert outcome(scene, "guest", "arq:get_all", "other") == "ok"
    assert outcome(scene, "guest", "device:disable") == "ok"
    assert outcome(scene, "admin", "arq:get_all", "other") == "-"
    assert outcome(scene, "admin", "arq:get_all", "own") == "ok"
    assert outcome(scene, "=admin", "arq:get_all") == "403"

    policy_file.define({"cyborg:arq:get_one": "project_id:%(project_id)s"})
    assert outcome(scene, "admin", "arq:get_one", "own") == "ok"
    # Never 403, which would tell that it exists.
    assert outcome(scene, "admin", "arq:get_one", "other") == "404"


def test_the_old_building_blocks_can_be_referred_to(policy_file: PolicyFile, scene: Scene) -> None:
    assert {rule.name for rule in rules.list_rules() if ":" not in rule.name} == BLOCKS
    for block, passing in {
        "allow": {"admin", "guest"},
        "deny": set(),
        "public_api": set(),
        "default": {"admin"},
        "is_admin": {"admin"},
        "admin_or_owner": {"admin", "guest"},
        "admin_or_user": {"admin", "guest"},
        "nowhere_defined": {"admin"},
    }.items():
        policy_file.define({"cyborg:device:get_all": f"rule:{block}"})
        came = {
            name for name in ("admin", "guest") if outcome(scene, name, "device:get_all") == "ok"
        }
        assert (block, came) == (block, passing)


def test_a_rule_that_cannot_be_decided_refuses(policy_file: PolicyFile, scene: Scene) -> None:
    itself, away = "rule:cyborg:device:get_all", "http://127.0.0.1:9/"
    for check in (itself, away, "role:admin and (", "nonsense"):
        policy_file.define({"cyborg:device:get_all": check})
        assert outcome(scene, "admin", "device:get_all") == "403"
        assert outcome(scene, "admin", "device:get_one") == "ok"


def test_a_file_that_breaks_or_is_gone_later_changes_nothing(policy_file, scene) -> None:
    policy_file.define({"cyborg:device:get_all": "role:reader"})
    assert outcome(scene, "reader", "device:get_all") == "ok"
    for broken in ("rules: [", "- cyborg:device:get_all", '"cyborg:device:get_all": 5', None):
        if broken is None:
            policy_file.path.unlink()
        else:
            policy_file.write(broken)
        assert outcome(scene, "reader", "device:get_all") == "ok"
        assert outcome(scene, "reader", "device:get_one") == "403"
    policy_file.define({})
    assert outcome(scene, "reader", "device:get_all") == "403"


def test_the_api_does_not_start_with_a_broken_file(policy_file, conf, database) -> None:
    policy_file.write("rules: [")
    with pytest.raises(UnreadableRules, match=r"rules\.yaml"):
        app.load(conf)


def test_every_rule_is_described_with_the_requests_that_are_tested() -> None:
    tested: dict[str, set[str]] = {}
    for what, ask in REQUESTS.items():
        line = ask.line.partition("?")[0] if ask.line.startswith("GET") else ask.line
        tested.setdefault(f"cyborg:{what.partition(' ')[0]}", set()).add(_shape(line))
    described = {}
    for rule in rules.list_rules():
        assert rule.description
        if isinstance(rule, oslo_policy.DocumentedRuleDefault):
            assert rule.scope_types == ["project"]
            lines = (f"{asked['method']} {asked['path']}" for asked in rule.operations)
            described[rule.name] = {_shape(line.replace("/v2/", "/")) for line in lines}
    assert described == tested


def _shape(line: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", line.removesuffix("?force=true"))


def test_the_sample_has_every_rule(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "sample.yaml"
    arguments = ["--config-file", str(GENERATOR), "--output-file", str(output)]
    generator.generate_sample(args=arguments, conf=cfg.ConfigOpts())
    named = set(re.findall(r'^#"([^"]+)": ', output.read_text(), re.MULTILINE))
    assert named == {rule.name for rule in rules.list_rules()}
    # All of it is commented out: a sample that is used as it is changes nothing.
    assert yaml.safe_load(output.read_text()) is None


def test_horizon_is_told_the_rules_of_the_api() -> None:
    fields = ("name", "check_str", "description", "operations")
    known = [tuple(getattr(rule, name, []) for name in fields) for rule in rules.list_rules()]
    told = yaml.safe_load(OF_HORIZON.read_text())
    assert [tuple(each[name] for name in fields) for each in told] == known, (
        "run, where Horizon is: DJANGO_SETTINGS_MODULE=cyborg_dashboard.tests.settings "
        "python -m django dump_default_policies --namespace cyborg.api "
        "--output-file cyborg_dashboard/default_policies.yaml"
    )
