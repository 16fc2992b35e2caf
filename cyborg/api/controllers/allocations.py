# SPDX-License-Identifier: Apache-2.0
"""``/v2/allocations``: all that a consumer needs, by one request."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from cyborg import quotas
from cyborg.allocations import allocation_steps, plans, service, wishes
from cyborg.api import arguments, declare, versions
from cyborg.api.controllers.accelerator_requests import put_health
from cyborg.api.controllers.resource import Resource, actions, lists, shows
from cyborg.api.representation import filled, self_link, timestamp_of_ms
from cyborg.api.request import Request, place
from cyborg.api.types import allocations as types
from cyborg.arqs import refusals
from cyborg.common import errors, reasons
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.policy.rules import allocation as policies
from cyborg.policy.rules import device_profile
from cyborg.programming import trait_match
from cyborg.states import allocation_states as states

_SINCE = versions.REGULAR
_MEMBER = declare.Member(kind="Allocation")
_BODY = declare.Body(name="allocation", type=types.AllocationRequest)
_RENEWAL = declare.Body(name="renewal", type=types.Renewal, optional_since=_SINCE)

#: How often a request chooses anew, because others were faster.
_MOST_TRIES = 3


class Allocations(Resource):
    """Allocations."""

    collection = "allocations"
    kind = types.Allocation
    actions = actions(POST=["renew"])

    @lists(policies.GET_ALL, kind, "allocations", since=_SINCE, query=types.QUERY)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[service.FullAllocation]:
        """List allocations."""
        return service.list_allocations(request.caller, page, **wanted)

    @shows(policies.GET_ONE, kind, since=_SINCE, member=_MEMBER)
    def get_one(self, request: Request, uuid: str) -> service.FullAllocation:
        """Show an allocation."""
        return service.get(request.caller, uuid)

    @declare.operation(
        policies.CREATE, since=_SINCE, body=_BODY, success=202, answer=kind, faults=[404, 409, 501]
    )
    def post(self, request: Request, body: dict[str, Any]) -> dict[str, Any]:
        """Allocate all that a consumer needs."""
        if wishes.has_groups(body):
            request.caller.authorize(policies.CREATE_GROUPS)
        if request.caller.project_id is None:
            raise errors.Forbidden("An allocation belongs to a project; use a token of one.")
        uuid = arguments.stored_uuid(body["consumer"]["uuid"])
        if body.get("dry_run", False):
            return _dry_run(request, _wish(request, uuid, body))
        with refusals.kept(request.caller, uuid):
            wish = _wish(request, uuid, body)
        return self.views(request, [_create(request, wish)])[0]

    @shows(policies.RENEW, kind, since=_SINCE, member=_MEMBER, body=_RENEWAL, faults=[409])
    def renew(self, request: Request, uuid: str, body: dict[str, Any]) -> service.FullAllocation:
        """Renew the lease of an allocation."""
        service.renew(request.caller, uuid, body.get("lease_seconds"))
        return service.get(request.caller, uuid)

    @declare.operation(policies.DELETE, since=_SINCE, member=_MEMBER, success=204)
    def delete_one(self, request: Request, uuid: str) -> None:
        """Delete an allocation."""
        service.delete(request.caller, uuid)

    def views(
        self, request: Request, rows: Iterable[service.FullAllocation]
    ) -> list[dict[str, Any]]:
        """Allocations, with the health of what their consumers have."""
        bodies = super().views(request, rows)
        put_health(request, [each for body in bodies for each in body["accelerators"]])
        return bodies

    def view(self, request: Request, found: service.FullAllocation) -> dict[str, Any]:
        """An allocation with what its consumer is given."""
        row = found.row
        told = {
            "consumer": _consumer(row, row.request["consumer"].get("nqn")),
            "state_reason": reasons.shown(request.caller, row.state_reason, row.private_reason),
            "alternative": row.alternative if "alternatives" in row.request else None,
            "hosts": sorted({arq.hostname for arq in found.arqs if arq.hostname}),
            "accelerators": [
                _accelerator(arq, found.cdi_kinds.get(arq.uuid)) for arq in found.arqs
            ],
            "lease_ends_at": timestamp_of_ms(row.lease_ms),
            "links": [self_link(request, self.collection, row.uuid)],
        }
        return filled(self.kind, request.version, row, told)


def _wish(request: Request, uuid: str, body: dict[str, Any]) -> plans.Wish:
    wish = wishes.read(request.caller, uuid, body)
    for part in wishes.parts(wish):
        with wishes.refusals_at(part.path):
            trait_match.refuse_groups(request.conf, part.groups)
    return wish


def _create(request: Request, wish: plans.Wish) -> service.FullAllocation:
    """The allocation, as far as it has come in the time that a request waits.

    :raises Conflict: it could not be had
    """
    limits = quotas.limits_of(request.conf, request.caller.project_id)
    for _ in range(_MOST_TRIES):
        with refusals.kept(request.caller, wish.uuid):
            service.create(request.conf, request.caller, wish, limits)
        with place(request.wait_places) as may_wait:
            if may_wait:
                service.await_end(request.caller, wish.uuid, request.bind_wait)
        found = service.get(request.caller, wish.uuid)
        if found.row.state != states.FAILED:
            return found
        if found.row.reason_code != allocation_steps.TAKEN.code:
            break
    row = found.row
    reason = reasons.shown(request.caller, row.state_reason, row.private_reason)
    raise errors.Conflict(
        f"Allocation {wish.uuid} has failed, and nothing is held for it: {reason}"
    )


def _dry_run(request: Request, wish: plans.Wish) -> dict[str, Any]:
    """The answer that :func:`_create` would give, or what would stop it, without a claim."""
    limits = quotas.limits_of(request.conf, request.caller.project_id)
    answer: dict[str, Any] = {
        **dict.fromkeys(types.Allocation.names(request.version)),
        "uuid": wish.uuid,
        "consumer": _consumer(wish, wish.consumer_nqn),
        "project_id": request.caller.project_id,
        "state": types.POSSIBLE,
        "hosts": [],
        "accelerators": [],
        "lease_seconds": wish.lease_seconds,
        "links": [],
    }
    try:
        choice = service.preview(request.conf, request.caller, wish, limits)
    except (errors.Conflict, errors.Forbidden) as exc:
        return answer | {"state": types.IMPOSSIBLE, "state_reason": exc.sentence}
    # What Placement has where is shown to those who may ask for candidates.
    shown = request.caller.may(device_profile.CANDIDATES)
    accelerators: list[dict[str, Any]] = [
        {
            "arq_uuid": None,
            "state": None,
            "device_profile_name": _profile(new.profile_name),
            "group": new.group_id,
            "hostname": place.hostname if shown else None,
            "device_rp_uuid": place.rp_uuid if shown else None,
            **_NO_HANDLE,
        }
        for place in choice.plan
        for new in plans.arqs([place])
    ]
    return answer | {
        "alternative": choice.alternative if "alternatives" in wish.request else None,
        "hosts": sorted({place.hostname for place in choice.plan}) if shown else [],
        "accelerators": put_health(request, accelerators),
    }


def _consumer(found: models.Allocation | plans.Wish, nqn: str | None) -> dict[str, Any]:
    name, kind = found.consumer_name, found.consumer_type
    return {"uuid": found.uuid, "type": kind, "name": name, "nqn": nqn}


_NO_HANDLE: dict[str, Any] = {
    "attach_handle_type": "",
    "attach_handle_uuid": None,
    "attach_handle_info": {},
}


def _accelerator(arq: models.Arq, cdi_kind: str | None) -> dict[str, Any]:
    # A handle is taken before its host step is done, but shown only once it may be used.
    handle = arq.attach_handle if arq.state == models.BOUND else None
    given = _NO_HANDLE
    if handle is not None:
        given = {
            "attach_handle_type": handle.attach_type,
            "attach_handle_uuid": handle.uuid,
            "attach_handle_info": json.loads(handle.attach_info),
        }
        if cdi_kind is not None:
            given["attach_handle_info"]["cdi_device"] = f"{cdi_kind}={arq.uuid}"
    return {
        "arq_uuid": arq.uuid,
        "state": arq.state,
        "device_profile_name": _profile(arq.device_profile_name),
        "group": arq.device_profile_group_id,
        "hostname": arq.hostname,
        "device_rp_uuid": arq.device_rp_uuid,
        **given,
    }


def _profile(name: str) -> str | None:
    return None if name == plans.INLINE else name

