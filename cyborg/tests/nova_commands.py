# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Nova: ``openstack flavor`` and ``openstack server``, and names of its servers.

It claims in Placement and binds as Nova does, by ``cyborg-standalone`` at ``OS_ENDPOINT``. What it
knows is in the file ``CLOUD``.
"""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import sys
import uuid
from typing import Any

import requests

REPOSITORY = pathlib.Path(__file__).parents[2]
QUICKSTART = runpy.run_path(str(REPOSITORY / "tools" / "quickstart.py"))
BIN = pathlib.Path(sys.executable).parent
#: The command ``openstack`` with the stand-in; ``GLANCE`` is where images are, and Keystone takes
#: all it is told.
SCRIPT = f"""
case " $* " in
" flavor "* | " server "* | *" --server "*) exec {sys.executable} -m {__name__} "$@" ;;
" project "* | " user "* | " role "*) exit ;;
" image "*) export OS_ENDPOINT=$GLANCE ;;
esac
exec {BIN}/openstack "$@"
"""
CYBORG = os.environ.get("OS_ENDPOINT", "")
PLACEMENT = f"{CYBORG.removesuffix('/v2')}/placement"


def ask(method: str, url: str, body: object = None) -> Any:
    headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.36"}
    patience = QUICKSTART["PATIENCE"]
    answer = requests.request(method, url, json=body, headers=headers, timeout=patience)
    assert answer.ok, answer.text
    return answer.json() if answer.content else {}


def boot(profile: str) -> str:
    """A server with what the profile asks for; its uuid."""
    server = str(uuid.uuid4())
    profiles = ask("GET", f"{CYBORG}/device_profiles")["device_profiles"]
    (groups,) = (each["groups"] for each in profiles if each["name"] == profile)
    query = QUICKSTART["candidates_query"](groups)
    found = ask("GET", f"{PLACEMENT}/allocation_candidates?{query}")
    claim = found["allocation_requests"][0]
    who = {"project_id": "demo", "user_id": "demo", "consumer_generation": None}
    ask("PUT", f"{PLACEMENT}/allocations/{server}", claim | who)
    (root,) = {each["root_provider_uuid"] for each in found["provider_summaries"].values()}
    host = ask("GET", f"{PLACEMENT}/resource_providers/{root}")["name"]
    arqs = ask("POST", f"{CYBORG}/accelerator_requests", {"device_profile_name": profile})["arqs"]
    target = {"hostname": host, "instance_uuid": server}
    target["device_rp_uuid"] = QUICKSTART["provider_of"](claim)
    patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in target.items()]
    ask("PATCH", f"{CYBORG}/accelerator_requests", {arq["uuid"]: patch for arq in arqs})

    def bound() -> bool | None:
        listed = ask("GET", f"{CYBORG}/accelerator_requests?instance={server}")["arqs"]
        return {arq["state"] for arq in listed} == {"Bound"} or None

    QUICKSTART["until"]("no request is Bound", bound)
    return server


def delete(server: str) -> None:
    ask("DELETE", f"{CYBORG}/accelerator_requests?instance={server}")
    ask("DELETE", f"{PLACEMENT}/allocations/{server}")


def main(words: list[str]) -> None:
    file = pathlib.Path(os.environ["CLOUD"])
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    match words:
        case ["flavor", "create", *_, option, name]:
            known[name] = option.removeprefix("accel:device_profile=")
        case ["server", "create", "--flavor", flavor, *_, name]:
            known[name] = boot(known[flavor])
        case ["server", "delete", *_, name]:
            delete(known.pop(name))
        case _:
            os.execv(BIN / "openstack", ["openstack", *(known.get(word, word) for word in words)])
    file.write_text(json.dumps(known))


if __name__ == "__main__":
    main(sys.argv[1:])
