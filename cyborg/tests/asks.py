# SPDX-License-Identifier: Apache-2.0
"""A request for every rule of policy, to be sent to a scene by any persona."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cyborg.tests.scene import NAMES_OF_A_PROJECT, Scene


@dataclass(frozen=True)
class Ask:
    """A request. ``{name}`` stands for one of the scene's names."""

    line: str
    body: Any = None
    #: The name of what an answer to GET shows.
    shows: str = ""
    #: Whether another service vouches for it, which changes no rule.
    vouched: bool = False
    microversion: str = "2.4"

    @property
    def owned(self) -> bool:
        """Whether it is for an object that belongs to one project."""
        words = f"{self.line} {self.body} {{{self.shows}}}"
        return any(f"{{{name}}}" in words for name in NAMES_OF_A_PROJECT)


BIND = [
    {"op": "add", "path": "/hostname", "value": "host-1"},
    {"op": "add", "path": "/device_rp_uuid", "value": "{rp}"},
    {"op": "add", "path": "/instance_uuid", "value": "{new}"},
]
MOVE = [*BIND, {"op": "add", "path": "/project_id", "value": "{project}"}]
UNBIND = [{"op": "remove", "path": part["path"]} for part in BIND]
PROGRAM = [{"op": "replace", "path": "/program", "value": [{"image_uuid": "{new}"}]}]
PROFILE = {"name": "{name}", "groups": [{"resources:FPGA": "1"}]}
ATTRIBUTE = {"deployable_id": "{deployable_id}", "key": "{name}", "value": "blue"}
POOL = {"name": "{name}", "function_id": "zip", "free": 1, "max_devices": 1}
ALLOCATION = {
    "consumer": {"uuid": "{new}", "type": "JOB"},
    "device_profile_name": "public",
}
OWN_GROUPS = {
    "consumer": {"uuid": "{new}", "type": "JOB"},
    "groups": [{"resources:FPGA": "1"}],
}
ALLOCATIONS = "/allocations"
ARQS, PROFILES, POOLS = "/accelerator_requests", "/device_profiles", "/function_pools"

#: A request that microversions of old have, too.
old = functools.partial(Ask, microversion="2.0")

REQUESTS = {
    "device_profile:get_all": old(f"GET {PROFILES}", shows="device_profile"),
    "device_profile:get_all mine": old(f"GET {PROFILES}", shows="private"),
    "device_profile:get_one": old(f"GET {PROFILES}/{{device_profile}}", shows="device_profile"),
    "device_profile:get_one mine": old(f"GET {PROFILES}/{{private}}", shows="private"),
    "device_profile:create": old(f"POST {PROFILES}", [PROFILE]),
    "device_profile:update": Ask(f"PUT {PROFILES}/{{device_profile}}", PROFILE),
    "device_profile:update off": Ask(f"POST {PROFILES}/{{device_profile}}/disable"),
    "device_profile:update on": Ask(f"POST {PROFILES}/{{disabled_profile}}/enable"),
    "device_profile:delete": old(f"DELETE {PROFILES}/{{device_profile}}"),
    "device_profile:delete many": old(f"DELETE {PROFILES}?value={{device_profile}}"),
    "device_profile:candidates": Ask(f"GET {PROFILES}/{{device_profile}}/candidates"),
    "arq:get_all": old(f"GET {ARQS}", shows="arq"),
    "arq:get_all 2.4": Ask(f"GET {ARQS}", shows="arq"),
    "arq:get_all project": Ask(f"GET {ARQS}?project_id={{project}}", shows="arq"),
    "arq:get_all all_projects": Ask(f"GET {ARQS}?all_projects=true", shows="arq"),
    "arq:get_all instance": old(f"GET {ARQS}?instance={{instance}}", shows="bound"),
    "arq:get_one": old(f"GET {ARQS}/{{arq}}", shows="arq"),
    "arq:get_access_key": Ask(f"GET {ARQS}/{{bound}}/access_key", shows="bound"),
    "arq:create": old(f"POST {ARQS}", {"device_profile_name": "public"}),
    "arq:create mine": old(f"POST {ARQS}", {"device_profile_name": "{private_name}"}),
    "arq:update bind": old(f"PATCH {ARQS}", {"{arq}": BIND}, vouched=True),
    "arq:update project": Ask(f"PATCH {ARQS}", {"{arq}": MOVE}, vouched=True, microversion="2.1"),
    "arq:update unbind": old(f"PATCH {ARQS}", {"{bound}": UNBIND}, vouched=True),
    "arq:delete": old(f"DELETE {ARQS}/{{arq}}"),
    "arq:delete many": old(f"DELETE {ARQS}?arqs={{arq}}"),
    "arq:delete bound": old(f"DELETE {ARQS}/{{bound}}", vouched=True),
    "arq:delete instance": old(f"DELETE {ARQS}?instance={{instance}}", vouched=True),
    "arq:get_all deleting": Ask(f"GET {ARQS}?state=Deleting&all_projects=true", shows="deleting"),
    "arq:get_all my deleting": Ask(f"GET {ARQS}?state=Deleting", shows="deleting"),
    "arq:release": Ask(f"POST {ARQS}/{{bound}}/release?force=true"),
    "allocation:get_all": Ask(f"GET {ALLOCATIONS}", shows="allocation"),
    "allocation:get_one": Ask(f"GET {ALLOCATIONS}/{{allocation}}", shows="allocation"),
    "allocation:create": Ask(f"POST {ALLOCATIONS}", ALLOCATION),
    "allocation:create_groups": Ask(f"POST {ALLOCATIONS}", OWN_GROUPS),
    "allocation:renew": Ask(f"POST {ALLOCATIONS}/{{allocation}}/renew"),
    "allocation:delete": Ask(f"DELETE {ALLOCATIONS}/{{allocation}}"),
    "device:get_all": old("GET /devices", shows="device"),
    "device:get_one": old("GET /devices/{device}", shows="device"),
    "device:disable": old("POST /devices/{device}/disable"),
    "device:enable": old("POST /devices/{disabled}/enable"),
    "device:taint": Ask("POST /devices/{device}/taint"),
    "device:taint off": Ask("POST /devices/{tainted}/untaint"),
    "device:delete": Ask("DELETE /devices/{disabled}"),
    "deployable:get_all": old("GET /deployables", shows="deployable"),
    "deployable:get_one": old("GET /deployables/{deployable}", shows="deployable"),
    "deployable:program": old("PATCH /deployables/{deployable}/program", PROGRAM),
    "deployable:program begin": Ask(
        "POST /deployables/{programmable}/program", {"image_uuid": "{new}"}
    ),
    "operation:get_all": Ask("GET /operations", shows="operation"),
    "operation:get_one": Ask("GET /operations/{operation}", shows="operation"),
    "operation:delete": Ask("DELETE /operations/{queued}"),
    "function_pool:get_all": Ask(f"GET {POOLS}", shows="function_pool"),
    "function_pool:get_one": Ask(f"GET {POOLS}/{{function_pool}}", shows="function_pool"),
    "function_pool:create": Ask(f"POST {POOLS}", POOL),
    "function_pool:update": Ask(f"PUT {POOLS}/{{function_pool}}", POOL),
    "function_pool:delete": Ask(f"DELETE {POOLS}/{{function_pool}}"),
    "function_miss:create": Ask("POST /function_misses", {"function_id": "aes"}),
    "history:get_all": Ask("GET /history", shows="entry"),
    "history:get_all project": Ask("GET /history?project_id={project}", shows="entry"),
    "history:get_all device": Ask("GET /devices/{device}/history", shows="entry"),
    "host:get_one": Ask("GET /hosts/{host}", shows="deleting"),
    "host:drain": Ask("POST /hosts/{host}/drain"),
    "host:undrain": Ask("POST /hosts/{drained_host}/undrain"),
    "host:taint": Ask("POST /hosts/{host}/taint"),
    "host:taint off": Ask("POST /hosts/{drained_host}/untaint"),
    "host:get_keys": Ask("GET /hosts/{drained_host}/keys", shows="host_key"),
    "host:enrol_key": Ask("POST /hosts/{host}/keys", {"public_key": "{new_key}"}),
    "host:revoke_keys": Ask("DELETE /hosts/{drained_host}/keys"),
    "summary:get_all": Ask("GET /summary", shows="host"),
    "usage:get_all": Ask("GET /usages", shows="project"),
    "usage:get_all project": Ask("GET /usages?project_id={project}", shows="project"),
    "usage:get_all all_projects": Ask("GET /usages?all_projects=true", shows="project"),
    "attach_handle:get_all": Ask("GET /attach_handles", shows="device"),
    "attribute:get_all": old("GET /attributes", shows="attribute"),
    "attribute:get_one": old("GET /attributes/{attribute}", shows="attribute"),
    "attribute:create": old("POST /attributes", ATTRIBUTE),
    "attribute:delete": old("DELETE /attributes/{attribute}"),
    "service:get_all": Ask("GET /services", shows="service"),
    "service:get_one": Ask("GET /services/{service}", shows="service"),
    "service:delete": Ask("DELETE /services/{service}?force=true"),
}


@dataclass(frozen=True)
class Answer:
    """What came of a request: ok, - where nothing is shown or done, or the code of an error."""

    outcome: str
    text: str


def send(
    scene: Scene,
    persona: str | None,
    ask: Ask,
    project: str = "own",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send the request for something of that project, and put the scene back to how it was."""
    names = scene.names(project)
    version = {"OpenStack-API-Version": f"accelerator {ask.microversion}"}
    answer = scene.ask(
        persona,
        filled(ask.line, names),
        filled(ask.body, names),
        vouched=ask.vouched,
        headers={**version, **(headers or {})},
    )
    changed = scene.has_changed()
    if changed:
        scene.renew()
    if answer.status_code >= 400:
        assert not changed
        return Answer(str(answer.status_code), answer.text)
    done = changed or (ask.shows != "" and names[ask.shows] in answer.text)
    return Answer("ok" if done else "-", answer.text)


def filled(template: Any, names: Mapping[str, str]) -> Any:
    """The template with the names in it."""
    if isinstance(template, str):
        return template.format_map(names)
    if isinstance(template, dict):
        return {key.format_map(names): filled(value, names) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(item, names) for item in template]
    return template


def read_table(text: str) -> dict[str, dict[str, str]]:
    """The rows of a table by what they begin with; a value stands below its column's name."""
    header, *lines = text.strip("\n").splitlines()
    columns = [(match.start(), match.group()) for match in re.finditer(r"\S+", header)]
    return {
        line[: columns[0][0]].strip(): {
            name: line[start:].split(maxsplit=1)[0] for start, name in columns
        }
        for line in lines
    }
