# SPDX-License-Identifier: Apache-2.0
"""Nova's HTTP API: send the events of a bind, and ask whether an instance still exists."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from oslo_config import cfg

from cyborg.common import errors
from cyborg.peers import answers, clients

LOG = logging.getLogger(__name__)

EVENT = "accelerator-request-bound"

#: The first compute API microversion that has the event.
_MICROVERSION = "2.82"


#: For GET /servers. From 2.69 on, Nova may answer 404 for an instance in a cell that is down; up
#: to 2.68 it answers with an error.
_SERVERS_MICROVERSION = "2.1"

#: The first in which flavors are listed with their extra specs, and the one that names a profile.
_FLAVORS_MICROVERSION = "2.61"
PROFILE_OF_FLAVOR = "accel:device_profile"


class MayNotLook(errors.ServiceUnavailable):
    """The user of ``[nova]`` may not see the servers of every project."""


def why_other_region(conf: cfg.ConfigOpts) -> str | None:
    """Why, by its options, Nova is of another region than Placement; None if it may be the same."""
    groups = conf.nova, conf.placement
    named, other = (None if group.endpoint_override else group.region_name for group in groups)
    if not (named and other) or named == other:
        return None
    return f"[nova] region_name is {named}, and [placement] region_name is {other}"


def bound_event(instance_uuid: str, arq_uuid: str, *, bound: bool) -> dict[str, str]:
    """One event for the body of ``POST /os-server-external-events``."""
    return {
        "name": EVENT,
        "server_uuid": instance_uuid,
        "tag": arq_uuid,
        "status": "completed" if bound else "failed",
    }


def send_events(
    conf: cfg.ConfigOpts, events: Sequence[dict[str, str]]
) -> tuple[int, list[dict[str, Any]]]:
    """Send ``events`` to Nova in one request.

    :returns: the HTTP status, and Nova's answer to each event (with its ``code``), if it gives one
    :raises keystoneauth1.exceptions.ClientException: Nova or Keystone cannot be reached
    """
    response = clients.proxy(conf, "nova").post(
        "/os-server-external-events",
        json={"events": list(events)},
        microversion=_MICROVERSION,
    )
    if response.status_code not in {200, 207}:
        return response.status_code, []
    answered = answers.document(response, {"events": [{"code": (int, None)}]})
    return response.status_code, answered["events"]


def is_there(conf: cfg.ConfigOpts, instance_uuid: str) -> bool | None:
    """True if Nova has the instance, in any project and any cell; None if that is not certain.

    A 404 is not enough: a user who is not an administrator gets it for the servers of other
    projects too. So the list of all projects must not have the instance either. That list alone
    is not enough, because it leaves out the cells that are down.

    :raises MayNotLook: Nova refuses that list to us
    :raises keystoneauth1.exceptions.ClientException: Nova or Keystone cannot be reached
    """
    status, found = _get(conf, f"/servers/{instance_uuid}")
    if status != HTTPStatus.NOT_FOUND or "itemNotFound" not in found:
        is_one = status == HTTPStatus.OK and answers.fits(found, {"server": {"id": str}})
        if is_one and found["server"]["id"] == instance_uuid:
            return True
        LOG.warning("Nova answered %s for instance %s", status, instance_uuid)
        return None
    status, listed = _get(conf, "/servers", all_tenants="true", uuid=instance_uuid)
    if status == HTTPStatus.FORBIDDEN:
        raise MayNotLook(
            "Nova does not let the user of [nova] list the servers of all projects; it has to have "
            "the role admin, or be permitted by os_compute_api:servers:index:get_all_tenants."
        )
    return False if status == HTTPStatus.OK and listed.get("servers") == [] else None


def has_deleted(conf: cfg.ConfigOpts, instance_uuid: str) -> bool:
    """True if Nova itself says that it had the instance, and has deleted it.

    It says so until the records of deleted servers are archived, and only to administrators.

    :raises keystoneauth1.exceptions.ClientException: Nova or Keystone cannot be reached
    """
    query = {"all_tenants": "true", "deleted": "true", "uuid": instance_uuid}
    status, listed = _get(conf, "/servers", **query)
    if status != HTTPStatus.OK or not answers.fits(listed, {"servers": [{"id": str}]}):
        return False
    return any(each["id"] == instance_uuid for each in listed["servers"])


def flavors(conf: cfg.ConfigOpts) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each flavor, with its extra specs.

    :raises ServiceUnavailable: Nova does not list the flavors to us
    :raises keystoneauth1.exceptions.ClientException: Nova or Keystone cannot be reached
    """
    query = {"is_public": "None", "limit": "1000"}
    shape = {"flavors": [{"id": str, "name": str, "extra_specs": dict}]}
    while True:
        status, listed = _get(conf, "/flavors/detail", _FLAVORS_MICROVERSION, **query)
        if status != HTTPStatus.OK or not answers.fits(listed, shape):
            raise errors.ServiceUnavailable(f"Nova answered {status} to GET /flavors/detail.")
        for flavor in listed["flavors"]:
            yield flavor["name"], flavor["extra_specs"]
        if not (listed["flavors"] and listed.get("flavors_links")):
            return
        query["marker"] = listed["flavors"][-1]["id"]


def _get(
    conf: cfg.ConfigOpts, path: str, microversion: str = _SERVERS_MICROVERSION, **query: str
) -> tuple[int, dict[str, Any]]:
    """The status and the JSON object of an answer, which is empty if the body is none."""
    response = clients.proxy(conf, "nova").get(path, params=query, microversion=microversion)
    try:
        return response.status_code, answers.document(response, dict)
    except answers.Unusable as exc:
        LOG.debug("%s", exc)
        return response.status_code, {}
