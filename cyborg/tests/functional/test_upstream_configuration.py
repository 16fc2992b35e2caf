# SPDX-License-Identifier: Apache-2.0
"""The ``cyborg.conf`` of the released Cyborg works as it is, and what means nothing is said."""

from __future__ import annotations

import configparser
import pathlib
from collections.abc import Iterable, Iterator
from importlib import metadata

import pytest
from keystoneauth1 import loading as ka_loading
from oslo_config import cfg
from oslo_privsep import priv_context

from cyborg import conf as cyborg_conf
from cyborg.conf import drivers, obsolete
from cyborg.tests.functional.test_reload import Service
from cyborg.tests.ports import free_port

FILE = pathlib.Path(__file__).parents[1] / "data" / "upstream-cyborg.conf"

#: Sections whose names are the operator's.
OWN_SECTIONS = {"vgpu_nvidia-35": drivers.VGPU_TYPE_OPTS, "x710_static": drivers.NIC_TYPE_OPTS}

LIBRARIES = (
    "keystonemiddleware.auth_token",
    "oslo.db",
    "oslo.log",
    "oslo.messaging",
    "oslo.middleware",
    "oslo.policy",
)

Listed = Iterable[tuple[str | None, Iterable[cfg.Opt]]]


def options_of_the_file() -> set[tuple[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, default_section="none")
    parser.read(FILE)
    return {(group, name) for group in parser.sections() for name in parser[group]}


def known() -> Iterator[tuple[str, str]]:
    """Every name under which an option is read, by us or by a library."""
    password = ka_loading.get_auth_plugin_conf_options("password")
    sources: list[Listed] = [
        cyborg_conf.list_opts(),
        OWN_SECTIONS.items(),
        [(group, password) for group in ("glance", "keystone_authtoken", "nova", "placement")],
        [("cyborg_sys_admin", priv_context.OPTS)],
        *(metadata.entry_points(group="oslo.config.opts")[name].load()() for name in LIBRARIES),
    ]
    for source in sources:
        for group, options in source:
            for option in options:
                yield str(group or "DEFAULT"), str(option.dest)
                for earlier in option.deprecated_opts:
                    yield earlier.group or str(group or "DEFAULT"), str(earlier.name)


def obsolete_of_the_file() -> set[tuple[str, str]]:
    listed = {
        (group or "DEFAULT", name)
        for group, options in obsolete.OBSOLETE.items()
        for name in options
    }
    return listed & options_of_the_file()


def test_every_option_is_read_or_known_to_mean_nothing() -> None:
    # The group as a whole is said to mean nothing.
    listed = {(group, name) for group, name in options_of_the_file() if group != "service_user"}
    assert listed - set(known()) - obsolete_of_the_file() == set()


def test_what_means_the_same_has_its_effect() -> None:
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(["--config-file", str(FILE)], project="cyborg")
    assert conf.agent.report_interval == 17
    assert (conf.thread_pool_size, conf.bind_timeout) == (11, 71)
    assert conf.state_path == "/usr/lib/python3/dist-packages/cyborg/state"
    assert conf.agent.enabled_drivers == ["fake_driver", "pci_driver"]
    assert conf.agent.resource_provider_name == "compute-1.example"
    assert (str(conf.api.host_ip), conf.api.port, conf.api.api_workers) == ("127.0.0.1", 6667, 3)
    assert conf.api.public_endpoint == "https://cloud.example/accelerator"
    assert conf.pci.device_spec == ['[{"vendor_id": "8086", "product_id": "0b2b"}]']
    assert conf.gpu_devices.enabled_vgpu_types == ["nvidia-35"]
    assert (conf.nova.timeout, conf.nova.region_name) == (21, "RegionOne")
    assert conf.placement.connect_retries == 2
    assert conf.nvme.cleanup_timeout == 600


@pytest.mark.parametrize("file", [FILE, None])
def test_what_means_nothing_is_named(file: pathlib.Path | None) -> None:
    conf = cfg.ConfigOpts()
    cyborg_conf.register(conf)
    conf(["--config-file", str(file)] if file else [], default_config_files=[])
    sentences = cyborg_conf.meaningless(conf)
    wanted = obsolete_of_the_file() if file else set()
    assert len(sentences) == len(wanted)
    for group, name in wanted:
        (sentence,) = (text for text in sentences if f"[{group}] {name} " in text)
        assert sentence.startswith("Option ")


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
