# SPDX-License-Identifier: Apache-2.0
"""What an operator has written and no service reads is said, by the name of the file."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.cmd import dbsync, status
from cyborg.tests.servers import REPOSITORY

NOT_READ = "is not read: "
RULE = "cyborg:device_profile:create"


def read(*arguments: str, prog: str = "cyborg-conductor") -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(list(arguments), project="cyborg", prog=prog, default_config_dirs=[])
    return conf


def said(*arguments: str, prog: str = "cyborg-conductor") -> list[str]:
    return sorted(cyborg_conf.passed_over(read(*arguments, prog=prog)))


def write(folder: pathlib.Path, **files: str) -> list[str]:
    """Write files, whose names have ``__`` for a point; the arguments that name the first."""
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return ["--config-file", str(folder / next(iter(files)).replace("__", "."))]


BESIDE = ["cyborg-conductor.conf", "cyborg-conductor.conf.d", "cyborg.conf.d"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_beside_the_one_that_is_named(tmp_path: pathlib.Path, name: str) -> None:
    named = write(tmp_path, cyborg__conf="", **{"cyborg-agent__conf": ""})
    path = tmp_path / name
    path.mkdir() if name.endswith(".d") else path.touch()
    (sentence,) = said(*named)
    assert sentence.startswith(f"{path} {NOT_READ}")
    kind = "--config-dir" if name.endswith(".d") else "--config-file"
    assert said(*named, kind, str(path)) == []
    # In a folder a file with another ending is not read.
    if path.is_dir():
        for each in ("01-mine.conf", "02-mine.ini"):
            (path / each).touch()
        (sentence,) = said(*named, kind, str(path))
        assert sentence.startswith(f"{path / '02-mine.ini'} {NOT_READ}")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("policy.json", "[oslo_policy] policy_file"),
        ("policy.yml", "[oslo_policy] policy_file"),
        ("policy.yaml", "[oslo_policy] policy_file"),
        ("policy.d", "[oslo_policy] policy_dirs"),
        ("api-paste.ini", "[api] api_paste_config"),
        ("api_audit_map.conf", "[api] audit_map_file"),
    ],
)
def test_a_file_of_the_usual_name_while_another_is_named(
    tmp_path: pathlib.Path, name: str, option: str
) -> None:
    group, _, what = option.partition("] ")
    named = write(tmp_path, cyborg__conf=f"{group}]\n{what} = other\n", other="")
    (tmp_path / name).touch()
    (sentence,) = said(*named)
    assert sentence == f"{tmp_path / name} {NOT_READ}{option} is other."
    write(tmp_path, cyborg__conf=f"{group}]\n{what} = {name}\n")
    assert said(*named) == []
    (tmp_path / name).unlink()
    assert said(*named) == [f"{option} names {name}, which is not there."]


def test_the_old_policy_file_is_said_by_the_check(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = write(tmp_path, cyborg__conf="[database]\nconnection = sqlite://\n", policy__json="{}")
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    assert status.main([*named, "upgrade", "check", "--json"]) == 2
    assert f"{tmp_path / 'policy.json'} {NOT_READ}" in capsys.readouterr().out


def test_the_lines_of_folders_are_said_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options, rules = tmp_path / "cyborg.conf.d", tmp_path / "policy.d"
    options.mkdir()
    rules.mkdir()
    (options / "one.conf").write_text("[agent]\nenabled_driver = pci_driver\n")
    (rules / "one.yaml").write_text(f'"{RULE}": "!"\n')
    named = write(tmp_path, cyborg__conf="")
    monkeypatch.setattr(cfg, "CONF", cfg.ConfigOpts())
    arguments = [*named, "--config-dir", str(options), "upgrade", "check"]
    assert status.main([*arguments, "--lines"]) == 0
    out = capsys.readouterr().out
    assert f"{options / 'one.conf'}:2: [agent] enabled_driver is not read by this release." in out
    assert f"{rules / 'one.yaml'}:1: {RULE} replaces the default" in out


def test_a_folder_may_be_imported_from(tmp_path: pathlib.Path) -> None:
    """The last file counts, as it did for the old services."""
    more = tmp_path / "cyborg.conf.d"
    more.mkdir()
    write(tmp_path, cyborg__conf="[database]\nconnection = sqlite:///one\n")
    assert dbsync._url(str(tmp_path)) == "sqlite:///one"
    (more / "db.conf").write_text("[database]\nconnection = sqlite:///two\n")
    for given in (tmp_path, tmp_path / "cyborg.conf", more):
        assert dbsync._url(str(given)) == "sqlite:///two"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("", ["cyborg.conf", "cyborg-api.conf", "cyborg.conf.d"]),
        ("cyborg.conf; a.conf", ["cyborg.conf", "a.conf", "cyborg.conf.d"]),
    ],
)
def test_the_api_under_others_servers_reads_its_own_file(
    tmp_path: pathlib.Path, database_url: str, files: str, expected: list[str]
) -> None:
    conf = "[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\n[api]\nauth_strategy = noauth\n"
    conf += f"[database]\nconnection = {database_url}\n"
    write(tmp_path, cyborg__conf=conf, a__conf="", **{"cyborg-api__conf": ""})
    (tmp_path / "cyborg.conf.d").mkdir()
    named = {"OS_CYBORG_CONFIG_DIR": str(tmp_path), "OS_CYBORG_CONFIG_FILES": files}
    code = (
        "import sys\nfrom oslo_config import cfg\nimport cyborg.wsgi.api\n"
        "print(*cfg.CONF.config_file, *cfg.CONF.config_dir, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **named},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    found = done.stderr.splitlines()[-1].split()
    assert [path.removeprefix(f"{tmp_path}/") for path in found] == expected


KOLLA = """
[keystone_authtoken]
auth_type = password
auth_url = http://10.0.0.1:5000
project_domain_id = default
user_domain_id = default
project_name = service
username = cyborg
password = pw
memcache_security_strategy = ENCRYPT
memcache_secret_key = secret
memcached_servers = 10.0.0.1:11211
[database]
connection = mysql+pymysql://cyborg:pw@10.0.0.1/cyborg
connection_recycle_time = 10
max_pool_size = 1
[oslo_limit]
auth_type = password
auth_url = http://10.0.0.1:5000
username = cyborg
password = pw
endpoint_id = one
system_scope = all
"""
SERVICE = """
[{}]
auth_type = password
auth_url = http://10.0.0.1:5000
project_domain_name = Default
user_domain_name = Default
project_name = service
username = cyborg
password = pw
region_name = RegionOne
valid_interfaces = internal
cafile = /etc/ssl/ca.pem
application_credential_id = one
application_credential_secret = two
"""


def test_the_validator_of_deployments_knows_what_they_write(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "cyborg.conf"
    file.write_text(KOLLA + "".join(map(SERVICE.format, cyborg_conf.SERVICES)))
    generator = REPOSITORY / "etc" / "cyborg" / "config-generator.conf"
    lines = generator.read_text().splitlines()
    names = [line.split(" = ")[1] for line in lines if line.startswith("namespace")]
    program = str(pathlib.Path(sys.executable).with_name("oslo-config-validator"))
    command = [program, "--input-file", str(file)]
    command += [part for name in names for part in ("--namespace", name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert "ERROR" not in done.stderr
    assert done.returncode == 0
    file.write_text("[placement]\nauth_ulr = x\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert "placement/auth_ulr is not part of the sample config" in done.stderr
