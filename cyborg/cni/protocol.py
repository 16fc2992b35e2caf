# SPDX-License-Identifier: Apache-2.0
"""The protocol of CNI: a request by environment and standard input, and the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.cni import functions
from cyborg.common import errors

NEWEST = "1.1.0"
VERSIONS = ("0.4.0", "1.0.0", NEWEST)
#: The commands, and the variables that each needs besides.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": (),
    "STATUS": (),
    "VERSION": (),
}
#: Codes of errors, those of the specification and, from 100 on, our own.
OLD_VERSION, BAD_FIELD, BAD_ENVIRONMENT, IO_FAILED, NO_JSON, BAD_CONFIG = 1, 2, 4, 5, 6, 7
TRY_LATER, NOT_READY, NOT_AS_GIVEN = 11, 50, 100

_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}")
_IFNAME = re.compile(r"(?!\.{1,2}$)[^/:\s]{1,15}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: No address of a group, and not the one of nobody.
_MAC = re.compile(r"(?!(00:){5}00)[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
_FIELDS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    "allocation": ("the uuid of an allocation", lambda each: _matches(_UUID, each)),
    "deviceProfile": ("the name of a device profile", lambda each: _matches(_ID, each)),
    "mac": ("an address such as 02:00:5e:00:53:01", lambda each: _matches(_MAC, each)),
    "mtu": ("a number from 68 to 65535", lambda each: _is_number(each, 68, 65535)),
    "vlan": ("a number from 0 to 4094", lambda each: _is_number(each, 0, 4094)),
    "spoofCheck": ("true or false", lambda each: isinstance(each, bool)),
    "configFile": ("the path of a file", lambda each: isinstance(each, str)),
}


class Failed(errors.CyborgError):
    """A command failed; the number tells the runtime why."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCall:
    """A command of a runtime."""

    command: str
    container: str
    netns: str
    ifname: str
    network: str
    config: Mapping[str, Any]
    arguments: Mapping[str, str]

    @property
    def settings(self) -> functions.Settings:
        """The settings for the function."""
        config = self.config
        return functions.Settings(
            mac=config.get("mac"),
            mtu=config.get("mtu"),
            vlan=config.get("vlan"),
            spoof_check=config.get("spoofCheck"),
        )

    @property
    def pod(self) -> str:
        """A name of the container for people."""
        names = [self.arguments.get(f"K8S_POD_{part}") for part in ("NAMESPACE", "NAME")]
        return "/".join(name for name in names if name) or self.container


def read(environ: Mapping[str, str], text: str) -> PluginCall:
    """The command that a runtime gives.

    :raises Failed: it is none, or its configuration makes no sense
    """
    command = environ.get("CNI_COMMAND", "")
    if command not in COMMANDS:
        raise Failed(BAD_ENVIRONMENT, f"CNI_COMMAND must be one of {', '.join(COMMANDS)}.")
    config = _config(text)
    version = config.get("cniVersion", NEWEST if command == "VERSION" else None)
    if command != "VERSION":
        if version not in VERSIONS:
            raise Failed(OLD_VERSION, f"cniVersion must be one of {', '.join(VERSIONS)}.")
        if not _matches(_ID, config.get("name")):
            raise Failed(BAD_CONFIG, "name must be letters, digits, '.', '_' and '-'.")
    _check_environment(command, environ)
    pairs = (each.partition("=") for each in environ.get("CNI_ARGS", "").split(";"))
    arguments = {key: value for key, _separator, value in pairs}
    if command in {"ADD", "CHECK", "STATUS"}:
        config = _merged(config, arguments)
    return PluginCall(
        command=command,
        container=environ.get("CNI_CONTAINERID", ""),
        netns=environ.get("CNI_NETNS", ""),
        ifname=environ.get("CNI_IFNAME", ""),
        network=config.get("name", ""),
        config=config,
        arguments=arguments,
    )


def result(request: PluginCall, function: functions.NicFunction) -> dict[str, Any]:
    """The result of ADD: that of the plugin before, and the interface."""
    before = request.config.get("prevResult") or {}
    wanted = request.settings
    own: dict[str, Any] = {
        "name": request.ifname,
        "mac": wanted.mac or function.mac,
        "sandbox": request.netns,
    }
    if request.config["cniVersion"] == NEWEST:
        own |= {"mtu": wanted.mtu or function.mtu, "pciID": function.address}
    interfaces = [*before.get("interfaces", ()), own]
    return {**before, "cniVersion": request.config["cniVersion"], "interfaces": interfaces}


def failure(text: str, failed: Failed) -> dict[str, Any]:
    """The answer to a command that failed."""
    try:
        version = _config(text).get("cniVersion", NEWEST)
    except Failed:
        version = NEWEST
    return {"cniVersion": version, "code": failed.number, "msg": str(failed)}


def _config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text or "{}")
    except ValueError as exc:
        raise Failed(NO_JSON, f"The network configuration is not JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise Failed(NO_JSON, "The network configuration must be an object.")
    return config


def _check_environment(command: str, environ: Mapping[str, str]) -> None:
    """Raise Failed if a variable is missing that the command needs."""
    shapes = {"CNI_CONTAINERID": _ID, "CNI_IFNAME": _IFNAME, "CNI_NETNS": re.compile("/.+")}
    for name in COMMANDS[command]:
        if not _matches(shapes[name], environ.get(name)):
            raise Failed(BAD_ENVIRONMENT, f"{name} is missing or malformed.")


def _merged(config: Mapping[str, Any], arguments: Mapping[str, str]) -> dict[str, Any]:
    """The configuration with what the runtime says of this container, once all is checked."""
    merged: dict[str, Any] = {**config, **_of_runtime(config, arguments)}
    if merged.get("ipam"):
        raise Failed(
            BAD_FIELD,
            f"ipam: {json.dumps(merged['ipam'])} is not supported: the interface has no address "
            "until the container, or a plugin after this one, gives it one.",
        )
    for field, (form, is_good) in _FIELDS.items():
        if field in merged and not is_good(merged[field]):
            raise Failed(BAD_CONFIG, f"{field} must be {form}.")
    if "allocation" not in merged and "deviceProfile" not in merged:
        raise Failed(
            BAD_CONFIG,
            "Give deviceProfile, or allocation, or CYBORG_ALLOCATION in the arguments of CNI.",
        )
    return merged


def _of_runtime(config: Mapping[str, Any], arguments: Mapping[str, str]) -> dict[str, Any]:
    told = config.get("runtimeConfig") or {}
    mac = told.get("mac", arguments.get("MAC"))
    allocation = arguments.get("CYBORG_ALLOCATION")
    found = {"mac": mac.lower() if isinstance(mac, str) else mac, "allocation": allocation}
    return {key: value for key, value in found.items() if value is not None}


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_number(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
