# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg.conf`` of the released Cyborg works as it is, and what means nothing is said."""

from __future__ import annotations

import configparser
import pathlib

import pytest
import webob
from oslo_config import cfg
from oslo_policy import opts as policy_opts

from cyborg import conf as cyborg_conf
from cyborg.api import app
from cyborg.cmd import known_options, status
from cyborg.conf import obsolete
from cyborg.policy import rules
from cyborg.tests.one_service import Service
from cyborg.tests.ports import free_port

pytestmark = pytest.mark.slow

FILE = pathlib.Path(__file__).parents[2] / "data" / "upstream-cyborg.conf"


def options_of_the_file() -> set[tuple[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, default_section="none")
    parser.read(FILE)
    return {(group, name) for group in parser.sections() for name in parser[group]}


def obsolete_of_the_file() -> set[tuple[str, str]]:
    listed = {
        (group or "DEFAULT", name)
        for group, options in obsolete.OBSOLETE.items()
        for name in options
    }
    return listed & options_of_the_file()


def read(*files: pathlib.Path) -> cfg.ConfigOpts:
    """The configuration of these files."""
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    named = [f"--config-file={file}" for file in files]
    conf(named, project="cyborg", default_config_files=[], default_config_dirs=[])
    return conf


def test_nothing_of_the_file_is_taken_for_mistyped() -> None:
    conf = read(FILE)
    unread = known_options.unread(conf)
    # The group as a whole is said to mean nothing.
    assert [sentence for sentence in unread if "[service_user]" not in sentence] == []


def test_what_means_the_same_has_its_effect() -> None:
    conf = read(FILE)
    assert conf.agent.report_interval == 17
    assert (conf.thread_pool_size, conf.bind_timeout) == (11, 71)
    assert conf.state_path == "/usr/lib/python3/dist-packages/cyborg/state"
    assert conf.agent.enabled_drivers == ["fake_driver", "pci_driver"]
    assert conf.agent.resource_provider_name == "compute-1.example"
    assert (str(conf.api.host_ip), conf.api.port) == ("127.0.0.1", 6667)
    # There it is a number of processes.
    assert conf.api.threads == 10
    assert conf.api.public_endpoint == "https://cloud.example/accelerator"
    assert conf.pci.device_spec == ['[{"vendor_id": "8086", "product_id": "0b2b"}]']
    assert conf.gpu_devices.enabled_vgpu_types == ["nvidia-35"]
    assert (conf.nova.timeout, conf.nova.region_name) == (21, "RegionOne")
    assert conf.placement.connect_retries == 2
    assert conf.nvme.cleanup_timeout == 600


def test_other_services_are_listed_with_their_internal_endpoints_first() -> None:
    found = {
        group: option.default
        for group, options in cyborg_conf.list_opts()
        for option in options
        if option.dest == "valid_interfaces"
    }
    assert found == {group: ["internal", "public"] for group in cyborg_conf.SERVICES}


def test_what_means_nothing_is_named() -> None:
    assert list(cyborg_conf.meaningless(read())) == []
    sentences, wanted = list(cyborg_conf.meaningless(read(FILE))), obsolete_of_the_file()
    assert len(sentences) == len(wanted)
    for group, name in wanted:
        (sentence,) = (text for text in sentences if f"[{group}] {name} " in text)
        assert sentence.startswith("Option ")


#: What the paste file of the released Cyborg consists of.
PASTE_FILE = """
[pipeline:main]
pipeline = cors request_id authtoken api_v2
[app:api_v2]
paste.app_factory = cyborg.api.app:app_factory
[filter:authtoken]
acl_public_routes = /, /v2
paste.filter_factory = cyborg.api.middleware.auth_token:AuthTokenMiddleware.factory
[filter:request_id]
paste.filter_factory = oslo_middleware:RequestId.factory
[filter:cors]
paste.filter_factory = oslo_middleware.cors:filter_factory
"""


def _use(conf: cfg.ConfigOpts, folder: pathlib.Path, text: str) -> pathlib.Path:
    file = folder / "api-paste.ini"
    file.write_text(text)
    conf.set_override("api_paste_config", str(file), group="api")
    conf.set_override("auth_strategy", "noauth", group="api")
    return file


@pytest.mark.usefixtures("database")
def test_its_paste_file_is_passed_over(conf, tmp_path, caplog) -> None:
    file = _use(conf, tmp_path, PASTE_FILE)
    served = app.load(conf)
    assert webob.Request.blank("/v2/devices").get_response(served).json == {"devices": []}
    assert f"The paste file {file} is that of another Cyborg and is passed over" in caplog.text


@pytest.mark.usefixtures("database")
def test_a_paste_file_with_a_part_of_the_operators_own_is_not_passed_over(conf, tmp_path) -> None:
    own = "[filter:audit]\npaste.filter_factory = ours.audit:filter_factory\n"
    _use(conf, tmp_path, PASTE_FILE.replace("cors request_id", "cors audit request_id") + own)
    with pytest.raises(app.UnusablePasteFile, match="cannot be used"):
        app.load(conf)


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("enforce", [True, False])
def test_old_defaults_of_policy_are_said_not_to_come_back(conf, caplog, enforce) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    policy_opts.set_defaults(conf)
    conf.set_override("enforce_new_defaults", enforce, group="oslo_policy")
    app.load(conf)
    assert ("enforce_new_defaults = false has no effect" in caplog.text) is not enforce


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("name", "ready"),
    [
        ("cyborg-api", "Listening on 127.0.0.1"),
        ("cyborg-conductor", "Connection failed"),
        ("cyborg-agent", "is not delivered yet"),
    ],
)
def test_each_service_starts_with_it_and_says_what_means_nothing(
    tmp_path: pathlib.Path, database_url: str, name: str, ready: str
) -> None:
    service = Service(name, tmp_path, database_url, FILE)
    service.start(api__port=str(free_port()), api__auth_strategy="noauth")
    try:
        service.says(ready)
        lines = service.lines("means nothing any more")
        assert len(lines) == len(obsolete_of_the_file())
        assert all("WARNING cyborg.process" in line for line in lines)
    finally:
        service.kill()


def test_of_each_line_it_is_said_what_becomes_of_it(tmp_path, monkeypatch, capsys) -> None:
    paste, policy = tmp_path / "api-paste.ini", tmp_path / "policy.yaml"
    paste.write_text(PASTE_FILE)
    checks = {rule.name: rule.check_str for rule in rules.list_rules()}
    name = "cyborg:device_profile:create"
    policy.write_text(
        f"# comment\n{name}: role:boss\ncyborg:device:disable: {checks['cyborg:device:disable']}\n"
        "of_another: is_admin:True\n"
    )
    more = tmp_path / "more.conf"
    more.write_text(
        f"[api]\napi_paste_config = {paste}\napi_wrokers = 2\n"
        f"[oslo_policy]\npolicy_file = {policy}\nenforce_new_defaults = false\n"
    )
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    files = ["--config-file", str(FILE), "--config-file", str(more)]
    assert status.main([*files, "upgrade", "check", "--lines"]) == 0
    said = capsys.readouterr().out.splitlines()

    options = {line.split("] ")[1].split(" ")[0] for line in said if line.startswith(str(FILE))}
    assert options == {option for _, option in options_of_the_file()}
    means_nothing = [line for line in said if "means nothing and can be removed" in line]
    assert len(means_nothing) >= len(obsolete_of_the_file())
    for sentence in (
        "[DEFAULT] periodic_interval is read as [agent] report_interval.",
        "[api] api_workers means nothing and can be removed: the built-in server has one process",
        f"{more}:3: [api] api_wrokers is not read by this release.",
        f"{more}:6: [oslo_policy] enforce_new_defaults has no effect",
        f"{paste}:2: [pipeline:main] is passed over",
        f"{policy}:2: {name} replaces the default, which is {checks[name]!r}.",
        f"{policy}:3: cyborg:device:disable is the default, and can be removed.",
        f"{policy}:4: of_another is no rule of this release",
    ):
        assert any(sentence in line for line in said), sentence
