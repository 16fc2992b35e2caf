# SPDX-License-Identifier: Apache-2.0
"""Options in an operator's files that nothing reads: names of another release, or mistyped."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Iterator
from importlib import metadata

from keystoneauth1 import loading as ka_loading
from oslo_config import cfg

from cyborg import conf as cyborg_conf
from cyborg.conf import drivers, nvme, obsolete, privileged

#: Whose options services read, by the names under which ``oslo-config-generator`` knows them.
LIBRARIES = {
    "castellan.config",
    "keystonemiddleware.audit",
    "keystonemiddleware.auth_token",
    "oslo.db",
    "oslo.limit",
    "oslo.log",
    "oslo.messaging",
    "oslo.middleware",
    "oslo.policy",
}
_Listed = Iterable[tuple[object, Iterable[cfg.Opt]]]


def unread(conf: cfg.ConfigOpts) -> list[str]:
    """A sentence for each option in the files of ``conf`` that nothing reads."""
    known = names(conf)
    return [
        f"Option [{group}] {name} is not read by this release."
        for group, name in _written(cyborg_conf.files(conf))
        if (group, name) not in known and not is_of_a_device(conf, group, name)
    ]


def _written(files: Iterable[str]) -> list[tuple[str, str]]:
    """Group and name of every option in the files, in their order."""
    found: list[tuple[str, str]] = []
    for file in files:
        parser = configparser.ConfigParser(
            interpolation=None, default_section="none", strict=False, allow_no_value=True
        )
        parser.read(file)
        found += [
            (group, name.replace("-", "_")) for group in parser.sections() for name in parser[group]
        ]
    return list(dict.fromkeys(found))


def names(conf: cfg.ConfigOpts) -> dict[tuple[str, str], tuple[str, str]]:
    """Group and name of each option under every name that is read, by that name."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for source in _sources(conf):
        for group, options in source:
            for option in options:
                now = str(group or "DEFAULT"), str(option.dest)
                found[now] = now
                for earlier in option.deprecated_opts:
                    name = str(earlier.name or option.dest).replace("-", "_")
                    found.setdefault((earlier.group or now[0], name), now)
    for other, obsolete_names in obsolete.OBSOLETE.items():
        for name in obsolete_names:
            found[other or "DEFAULT", name] = other or "DEFAULT", name
    return found


def _sources(conf: cfg.ConfigOpts) -> Iterator[_Listed]:
    yield cyborg_conf.list_opts()
    for entry in metadata.entry_points(group="oslo.config.opts"):
        if entry.name in LIBRARIES:
            yield entry.load()()
    for group in (*cyborg_conf.SERVICES, "oslo_limit", "keystone_authtoken"):
        chosen = None if group == "keystone_authtoken" else conf[group].auth_type
        yield [(group, ka_loading.get_auth_plugin_conf_options(chosen or "password"))]
    yield privileged.list_opts()


def is_of_a_device(conf: cfg.ConfigOpts, group: str, name: str) -> bool:
    """True if it is in a group that the operator names after a type of a card, or a target."""
    options: list[cfg.Opt] = []
    if group.removeprefix("vgpu_") in (conf.gpu_devices.enabled_vgpu_types or ()):
        options += drivers.VGPU_TYPE_OPTS
    if group in (conf.nic_devices.enabled_nic_types or ()):
        options += drivers.NIC_TYPE_OPTS
    if group.removeprefix("nvmf_spdk_") in (conf.nvmf_spdk.targets or ()):
        options += nvme.NVMF_TARGET_OPTS
    return name in {option.dest for option in options}
