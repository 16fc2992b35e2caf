# SPDX-License-Identifier: Apache-2.0
"""A module that an option needs is missed when a service starts, and with a sentence."""

from __future__ import annotations

import os
import pathlib
import pkgutil
import subprocess
import sys
from importlib import metadata

import pytest
from castellan import key_manager
from keystoneauth1 import loading as ka_loading
from oslo_config import cfg
from oslo_log import log
from oslo_messaging._tracing import client as tracing

from cyborg import cmd, notifications
from cyborg import conf as cyborg_conf
from cyborg.common import errors, needs
from cyborg.tests import one_service, ports
from cyborg.tests.servers import REPOSITORY

pytestmark = pytest.mark.slow

PATIENCE = 120
#: For each row of the table: a group with the option, and a value that needs the module.
VALUES: dict[tuple[str, str], tuple[str, str]] = {
    ("auth_type", "requests_kerberos"): ("placement", "v3kerberos"),
    ("auth_type", "oauthlib"): ("keystone_authtoken", "v3oauth1"),
    ("auth_type", "lxml.etree"): ("nova", "v3samlpassword"),
    ("kombu_compression", "brotli"): ("oslo_messaging_rabbit", "brotli"),
    ("kombu_compression", "backports.zstd"): ("oslo_messaging_rabbit", "zstd"),
    ("memcache_sasl_enabled", "bmemcached"): ("keystone_authtoken", "true"),
    ("memcache_security_strategy", "cryptography"): ("keystone_authtoken", "ENCRYPT"),
    ("memcache_tls_enabled", "bmemcached"): ("keystone_authtoken", "true"),
    ("memcached_servers", "memcache"): ("keystone_authtoken", "10.0.0.1:11211,10.0.0.2:11211"),
    ("require_signature", "castellan"): ("programming", "true"),
    ("require_signature", "cursive"): ("programming", "true"),
    ("tracing_enabled", "opentelemetry.sdk"): ("oslo_messaging_tracing", "true"),
    ("transport_url", "confluent_kafka"): ("oslo_messaging_notifications", "kafka://h:9092/"),
    ("use_journal", "systemd.journal"): ("DEFAULT", "true"),
}
ROWS = [(option, module) for option, _values, module, _package in needs.NEEDS]


def _conf(tmp_path: pathlib.Path, group: str, option: str, value: str) -> cfg.ConfigOpts:
    """The configuration of a file with that option, as all services together know it."""
    file = tmp_path / "cyborg.conf"
    file.write_text(f"[{group}]\n{option} = {value}\n")
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    log.register_options(conf)
    for name in ("oslo.messaging", "keystonemiddleware.auth_token"):
        for of, options in metadata.entry_points(group="oslo.config.opts")[name].load()():
            conf.register_opts(options, group=of)
    conf.register_opts(tracing.oslo_messaging_tracing, group="oslo_messaging_tracing")
    conf(["--config-file", str(file)], project="cyborg", default_config_dirs=[])
    return conf


def _hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Have the module not be there."""
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(("option", "module"), ROWS)
def test_each_option_is_refused_without_its_module(tmp_path, monkeypatch, option, module) -> None:
    group, value = VALUES[option, module]
    conf = _conf(tmp_path, group, option, value)
    _hide(monkeypatch, module)
    with pytest.raises(errors.Misconfigured) as refused:
        needs.check(conf, group)
    (package,) = {row[3] for row in needs.NEEDS if (row[0], row[2]) == (option, module)}
    said = str(refused.value)
    assert said.startswith(f"[{group}] {option} needs the Python module {module}, which is not ")
    assert said.endswith(f": install {package}.")
    assert "\n" not in said


def test_nothing_is_needed_that_is_not_set(tmp_path, monkeypatch) -> None:
    conf = _conf(tmp_path, "keystone_authtoken", "memcache_security_strategy", "None")
    for _option, module in ROWS:
        _hide(monkeypatch, module)
    needs.check(conf, *{group for group, _value in VALUES.values()})


def test_a_module_that_does_not_load_is_not_there(tmp_path, monkeypatch) -> None:
    """Its own library may be missing."""
    (tmp_path / "brotli.py").write_text("raise ImportError('libbrotli.so: no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "brotli", raising=False)
    conf = _conf(tmp_path, "oslo_messaging_rabbit", "kombu_compression", "brotli")
    with pytest.raises(errors.Misconfigured, match=r"does not load \(libbrotli\.so: no such file"):
        needs.check(conf, "oslo_messaging_rabbit")


#: What options name: the entry points of libraries.
DRIVERS = (
    "castellan.drivers",
    "oslo.messaging.drivers",
    "oslo.messaging.notify.drivers",
    "oslo.middleware.healthcheck",
    "oslo.policy.rule_checks",
)


@pytest.mark.parametrize("namespace", DRIVERS)
def test_drivers_that_do_not_load_are_in_the_table(namespace: str) -> None:
    missed = set()
    for entry in metadata.entry_points(group=namespace):
        try:
            entry.load()
        except ImportError as exc:
            missed.add(str(exc.name).partition(".")[0])
    assert missed <= {module.partition(".")[0] for _option, module in ROWS}


def test_credentials_that_are_not_available_are_in_the_table() -> None:
    """keystoneauth itself says of its plugins which of them lack their module."""
    optional = {"requests_kerberos", "oauthlib", "lxml"}
    code = (
        "import sys\n"
        f"for name in {optional}: sys.modules[name] = None\n"
        "from keystoneauth1 import loading\n"
        "from importlib import metadata\n"
        "for each in metadata.entry_points(group='keystoneauth1.plugin'):\n"
        "    try:\n"
        "        is_there = 'keystoneauth1' not in each.value or each.load()().available\n"
        "    except (AttributeError, ImportError):\n"
        "        is_there = False\n"
        "    if not is_there: print(each.name)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    listed = [row[1].split() for row in needs.NEEDS if row[0] == "auth_type"]
    assert set(done.stdout.split()) == {name for names in listed for name in names}
    assert ka_loading.get_plugin_loader("password").available


def test_every_extra_that_a_sentence_names_is_there() -> None:
    extras = set(metadata.metadata("openstack-cyborg").get_all("Provides-Extra") or ())
    container = (REPOSITORY / "Containerfile").read_text()
    for _option, _values, _module, package in needs.NEEDS:
        if package.startswith("Cyborg with its extra "):
            extra = package.rpartition(" ")[2]
            assert f"{extra} =\n" in (REPOSITORY / "setup.cfg").read_text()
            assert extra in container
    assert {"mysql", "postgresql"} <= extras


def test_no_command_imports_what_only_options_need() -> None:
    """Anew: the forks below have imported everything before a module is hidden."""
    # Signatures of messages need it, whatever the options are.
    hidden = {row[2] for row in needs.NEEDS} - {"cryptography"}
    commands = [each.name for each in pkgutil.iter_modules(cmd.__path__, f"{cmd.__name__}.")]
    assert {"cyborg.cmd.agent", "cyborg.cmd.api", "cyborg.cmd.conductor"} <= set(commands)
    code = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({hidden}))\n"
        f"for each in {commands}: importlib.import_module(each)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@pytest.fixture
def file(tmp_path: pathlib.Path, database_url: str) -> pathlib.Path:
    path = tmp_path / "cyborg.conf"
    path.write_text(
        "[DEFAULT]\ntransport_url = rabbit://127.0.0.1:1/\n"
        f"state_path = {tmp_path}\n[database]\nconnection = {database_url}\n"
        f"[api]\nport = {ports.free_port()}\nauth_strategy = keystone\n"
        "[placement]\nauth_type = none\n"
    )
    return path


KAFKA = "[oslo_messaging_notifications]\ndriver = messagingv2\ntransport_url = kafka://h:9092/\n"
CACHE = "[keystone_authtoken]\nmemcached_servers = h:11211\n"
KERBEROS = "[nova_watcher]\nauth_type = v3kerberos\n[kube]\nauth_type = v3kerberos\n"
KERBEROS += "[ironic]\nauth_type = v3kerberos\n[glance]\nauth_type = v3kerberos\n"
STARTS = [
    ("cyborg-api", CACHE, "memcache"),
    ("cyborg-api", KAFKA, "confluent_kafka"),
    ("cyborg-conductor", KAFKA, "confluent_kafka"),
    ("cyborg-conductor", KERBEROS, "requests_kerberos"),
    ("cyborg-agent", KERBEROS, "requests_kerberos"),
    ("cyborg-agent", "[DEFAULT]\nuse_journal = true\n", "systemd.journal"),
    ("cyborg-nova-watcher", KERBEROS, "requests_kerberos"),
    ("cyborg-kube", KERBEROS, "requests_kerberos"),
    ("cyborg-ironic", KERBEROS, "requests_kerberos"),
    ("cyborg-standalone", KAFKA, "confluent_kafka"),
]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(("command", "text", "module"), STARTS)
def test_each_command_ends_with_a_sentence(tmp_path, file, command, text, module) -> None:
    more = tmp_path / "more.conf"
    more.write_text(text)
    own = {
        "cyborg-ironic": ["import"],
        "cyborg-standalone": ["--state-dir", str(tmp_path / "state"), "--port", "0"],
    }
    arguments = ["--config-file", str(file), "--config-file", str(more), *own.get(command, [])]
    process = one_service.Forked(command, *arguments, log=tmp_path / "said", hidden=[module])
    code, said = process.wait(), process.log.read_text()
    assert code == 1, said
    # The API says it in its log, if that is open already.
    last = said.strip().splitlines()[-1]
    assert f"{command}: " in last or "Cannot serve: " in last
    assert f"needs the Python module {module}, which is not installed" in last
    assert "Traceback" not in said


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("server", ["uwsgi", "gunicorn"])
def test_the_api_under_others_servers_ends_with_a_sentence(tmp_path, file, server) -> None:
    file.write_text(file.read_text() + CACHE)
    port, module = ports.free_port(), "cyborg.wsgi.api:application"
    arguments = {
        "uwsgi": ["--http-socket", f"127.0.0.1:{port}", "--need-app", "--module", module],
        "gunicorn": ["--bind", f"127.0.0.1:{port}", module],
    }
    (tmp_path / "memcache.py").write_text("raise ModuleNotFoundError('none', name='memcache')\n")
    folders = {"OS_CYBORG_CONFIG_DIR": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [str(pathlib.Path(sys.executable).with_name(server)), *arguments[server]],
        env=os.environ | folders,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert "[keystone_authtoken] memcached_servers needs the Python module memcache" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("driver", ["messagingv3", "messagingv2 "])
def test_a_driver_of_notifications_that_nobody_has_is_refused(conf, driver) -> None:
    notifications.wanted(conf)
    conf.set_override("driver", ["log", driver], group=notifications.GROUP)
    with pytest.raises(errors.Misconfigured, match=rf"driver names {driver}; there are .*noop"):
        notifications.configure(conf)


def test_the_key_managers_of_castellan_load() -> None:
    for entry in metadata.entry_points(group="castellan.drivers"):
        assert issubclass(entry.load(), key_manager.key_manager.KeyManager)
