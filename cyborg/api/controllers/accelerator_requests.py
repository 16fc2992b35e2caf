# SPDX-License-Identifier: Apache-2.0
"""``/v2/accelerator_requests``: requests for attach handles, one each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cyborg import profiles, quotas
from cyborg.api import arq_patch, declare, versions
from cyborg.api.controllers.resource import Resource, actions, lists, shows
from cyborg.api.representation import self_link, timestamp
from cyborg.api.request import Request, place
from cyborg.api.types import accelerator_requests as types
from cyborg.api.types import fields, hosts, removals
from cyborg.arqs import binding, refusals, service
from cyborg.common import errors
from cyborg.common.reasons import shown
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.handles import giving_up, release
from cyborg.peers import clients
from cyborg.policy.rules import arq as policies
from cyborg.programming import trait_match

_SINCE = versions.REGULAR
_WHY = declare.Body(name="release", type=hosts.Reason, optional_since=_SINCE)
_PATCH = declare.Body(name="patch_list", type=types.PATCH, prefix=arq_patch.REFUSED)

#: What SDKs in the field send behind the collection in the path of a PATCH changes nothing.
_ANY = declare.Member(type=fields.TEXT)
_MEMBER = declare.Member(kind="ExtArq")


class AcceleratorRequests(Resource):
    """Accelerator requests."""

    collection = "accelerator_requests"
    kind = types.AcceleratorRequest
    actions = actions(POST=["release"], GET=["access_key"])

    @lists(policies.GET_ALL, kind, "arqs", query=types.QUERY, faults=[409, 423], waits=True)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[service.Shown]:
        """List ARQs."""
        if request.version >= versions.REGULAR:
            _choose_projects(request, wanted)
        if wanted.get("state") == models.DELETING and not request.caller.is_admin:
            raise errors.Forbidden(f"state={models.DELETING} is for administrators.")
        if "instance" in wanted:
            wanted["instance_uuid"] = wanted.pop("instance")
        only_resolved = wanted.pop("bind_state", None) is not None
        found = service.list_arqs(request.caller, page, only_resolved=only_resolved, **wanted)
        if not only_resolved and "instance_uuid" in wanted and request.caller.has_service_token:
            if _has_awaited(request, wanted["instance_uuid"], found):
                found = service.list_arqs(request.caller, page, **wanted)
            # Nova takes every decided ARQ for bound, and would start the server without its device.
            service.refuse_failed(request.caller, found)
        return found

    @shows(policies.GET_ONE, kind, member=declare.Member())
    def get_one(self, request: Request, uuid: str) -> service.Shown:
        """Show an ARQ."""
        arq = service.get_arq(request.caller, uuid)
        # A second time for the ARQ itself: an operator's rule may depend on its project.
        try:
            request.caller.authorize(policies.GET_ONE, {"project_id": arq.project_id})
        except errors.Forbidden as exc:
            raise errors.NotFound.of("ExtArq", uuid=uuid) from exc
        return arq

    @declare.operation(
        policies.CREATE,
        body=declare.Body(name="req", type=types.NewAcceleratorRequests),
        success=201,
        answer=fields.list_of(kind, "arqs"),
        faults=[404, 409],
        waits=True,
    )
    def post(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Create the ARQs of a device profile."""
        name = body["device_profile_name"]
        limits = quotas.limits_of(request.conf, request.caller.project_id)
        most = request.conf.api.max_unbound_arqs
        with refusals.kept(request.caller):
            if clients.configured(request.conf, "glance"):
                # What contradicts itself was refused with the profile; images change.
                trait_match.refuse_groups(request.conf, profiles.read_named(request.caller, name))
            created = service.create(request.caller, name, limits, most=most)
        return {"arqs": self.views(request, created)}

    @declare.operation(policies.UPDATE, body=_PATCH, success=202, faults=[404, 409], waits=True)
    def patch_all(self, request: Request, body: dict[str, Any]) -> None:
        """Bind or unbind ARQs."""
        _change(request, body)

    @declare.operation(policies.UPDATE, member=_ANY, body=_PATCH, success=202, faults=[409])
    def patch_one(self, request: Request, uuid: str, body: dict[str, Any]) -> None:
        """Bind or unbind the ARQs that the body names, as SDKs in the field ask for it."""
        _change(request, body)

    @declare.operation(
        policies.DELETE, query=types.DELETE, success=204, faults=[404, 409], waits=True
    )
    def delete_all(self, request: Request, given: dict[str, Any]) -> None:
        """Delete ARQs by uuid or by instance."""
        if len(given) != 1:
            raise errors.Invalid(
                "Provide either an ARQ uuid list or an instance UUID: the argument arqs or the "
                "argument instance."
            )
        if "instance" in given:
            release.delete_instance_arqs(request.caller, given["instance"])
        else:
            release.delete_arqs(request.caller, [arq_patch.arq_uuid(one) for one in given["arqs"]])

    @declare.operation(policies.DELETE, member=_MEMBER, success=204, faults=[409])
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete an ARQ."""
        release.delete_arqs(request.caller, [uuid])

    @declare.operation(
        policies.RELEASE,
        since=_SINCE,
        member=_MEMBER,
        query=removals.QUERY,
        body=_WHY,
        answer=removals.Removal,
        faults=[409],
    )
    def release(
        self, request: Request, uuid: str, given: dict[str, Any], body: dict[str, Any]
    ) -> dict[str, Any]:
        """Free what an ARQ holds without the host step that it waits for."""
        return removals.answer(giving_up.release_arq(request.caller, uuid, **given, **body))

    @declare.operation(
        policies.GET_ACCESS_KEY, since=_SINCE, member=_MEMBER, answer=types.AccessKey, faults=[409]
    )
    def access_key(self, request: Request, uuid: str) -> dict[str, Any]:
        """Show the secret with which an ARQ's attach handle is used."""
        return service.access_key(request.caller, uuid)

    def views(self, request: Request, rows: Iterable[service.Shown]) -> list[dict[str, Any]]:
        """ARQs, with the health of what they have."""
        return put_health(request, super().views(request, rows))

    def view(self, request: Request, arq: service.Shown) -> dict[str, Any]:
        """An ARQ with its attach handle, if the guest may use that."""
        # A handle is taken before its host step is done, but shown only once the guest may use it.
        is_bound = arq.state == models.BOUND
        return {
            "uuid": arq.uuid,
            "state": arq.state,
            "state_reason": shown(request.caller, arq.state_reason, arq.private_reason),
            "device_profile_name": arq.device_profile_name,
            "device_profile_group_id": arq.device_profile_group_id,
            "hostname": arq.hostname,
            "device_rp_uuid": arq.device_rp_uuid,
            "instance_uuid": arq.consumer_uuid,
            "project_id": arq.project_id,
            "attach_handle_type": arq.attach_type or "" if is_bound else "",
            "attach_handle_uuid": arq.handle_uuid if is_bound else None,
            "attach_handle_info": json.loads(arq.attach_info or "{}") if is_bound else {},
            "health": None,
            "links": [self_link(request, "accelerator_requests", arq.uuid)],
            "created_at": timestamp(arq.created_at),
            "updated_at": timestamp(arq.updated_at),
        }


def put_health(request: Request, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The bodies, in which each attach handle that is shown is so with its device's health."""
    if request.version >= versions.REGULAR:
        uuids = {body["attach_handle_uuid"] for body in bodies}
        found = service.healths(uuids - {None})
        for body in bodies:
            body["health"] = found.get(body["attach_handle_uuid"])
    return bodies


def _change(request: Request, body: dict[str, Any]) -> None:
    changes = arq_patch.parse(body, request.version)
    if changes.names_project and not request.caller.is_admin:
        raise errors.Forbidden(f"Access was denied to the following resource: {policies.UPDATE}")
    images = binding.look_up_images(request.conf, request.caller, changes.binds)
    limits = {
        project: quotas.limits_of(request.conf, project)
        for project in {target.project_id for target in changes.binds.values()}
        if project is not None
    }
    binds, unbinds = changes.binds, changes.unbinds
    binding.request_changes(request.caller, binds, unbinds, images, limits, request.conf)


def _has_awaited(request: Request, instance: str, found: Iterable[service.Shown]) -> bool:
    """Wait while ARQs of an instance are being bound; whether there was a wait.

    Nova asks once and then waits for events only. No event reaches it while it unshelves a server,
    which has no host until its accelerators are bound.
    """
    waits = any(arq.state == models.BIND_STARTED for arq in found)
    if not waits:
        return False
    with place(request.wait_places) as may_wait:
        if may_wait:
            service.await_binds(request.caller, instance, request.bind_wait)
        return may_wait


def _choose_projects(request: Request, wanted: dict[str, Any]) -> None:
    """Show administrators their own project only, unless they ask for another or for all."""
    caller, all_projects = request.caller, wanted.pop("all_projects", False)
    if all_projects and not caller.is_admin:
        raise errors.Forbidden("all_projects is for administrators; leave it out.")
    if caller.is_admin and not all_projects:
        wanted.setdefault("project_id", caller.project_id)
