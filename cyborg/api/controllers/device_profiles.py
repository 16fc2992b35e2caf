# SPDX-License-Identifier: Apache-2.0
"""``/v2/device_profiles``: what consumers may ask for, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyborg import db, profiles
from cyborg.allocations import fitting, plans, shortages
from cyborg.api import arguments, declare, versions
from cyborg.api.controllers.resource import Resource, actions, lists, shows
from cyborg.api.representation import aware, self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.types import device_profiles as types
from cyborg.arqs import candidates
from cyborg.common import request_groups
from cyborg.db import models
from cyborg.db.paging import Page
from cyborg.policy.rules import device_profile as policies
from cyborg.policy.rules import host
from cyborg.programming import trait_match

_SINCE = versions.REGULAR
_NAME = "req_devprof_list"
_MEMBER = declare.Member(name="uuid_or_name", type=types.UUID_OR_NAME)


class DeviceProfiles(Resource):
    """Device profiles."""

    collection = "device_profiles"
    kind = types.DeviceProfile
    actions = actions(GET=["candidates"], POST=["enable", "disable"])

    @lists(policies.GET_ALL, kind, "device_profiles", query=types.QUERY, waits=True)
    def get_all(self, request: Request, page: Page, **wanted: Any) -> list[models.DeviceProfile]:
        """List profiles."""
        names = wanted.pop("name", None)
        is_regular = request.version >= versions.REGULAR
        # Clients that cannot see that a profile is disabled, like Nova, would ask for it and fail.
        if not is_regular:
            wanted["enabled"] = True
        return profiles.list_profiles(
            request.caller,
            page,
            names=names,
            with_projects=_shows_projects(request),
            with_in_use=is_regular,
            with_taints=not is_regular,
            **wanted,
        )

    @declare.operation(policies.GET_ONE, member=_MEMBER, answer=types.ONE)
    def get_one(self, request: Request, uuid_or_name: str) -> dict[str, Any]:
        """Show a profile."""
        key = _key(uuid_or_name)
        if key.field == "name":
            versions.require(request.version, versions.PROFILE_BY_NAME)
        profile = profiles.get_profile(request.caller, key)
        if request.version >= versions.REGULAR:
            return self.views(request, [profile])[0]
        return {"device_profile": _view_of_one(request, profile)}

    @shows(
        policies.CREATE,
        kind,
        body=declare.Body(name=_NAME, type=types.NEW),
        success=201,
        faults=[409],
    )
    def post(self, request: Request, body: Any) -> models.DeviceProfile:
        """Create a profile."""
        new = body if request.version >= versions.REGULAR else body[0]
        uuid = arguments.stored_uuid(new["uuid"]) if "uuid" in new else None
        return profiles.create_profile(**_stored(request, new), uuid=uuid)

    @shows(
        policies.UPDATE,
        kind,
        member=_MEMBER,
        body=declare.Body(name=_NAME, type=types.DeviceProfileReplacement),
        since=_SINCE,
        faults=[409],
    )
    def put_one(self, request: Request, uuid_or_name: str, body: Any) -> models.DeviceProfile:
        """Replace a profile."""
        stored = _stored(request, body)
        uuid = profiles.replace_profile(request.caller, _key(uuid_or_name), **stored)
        # With what is counted of it.
        return profiles.get_profile(request.caller, profiles.ProfileName("uuid", uuid))

    @declare.operation(policies.UPDATE, since=_SINCE, member=_MEMBER, success=204)
    def enable(self, request: Request, uuid_or_name: str) -> None:
        """Have accelerator requests made of a profile again."""
        profiles.enable_profile(request.caller, _key(uuid_or_name), enabled=True)

    @declare.operation(policies.UPDATE, since=_SINCE, member=_MEMBER, success=204)
    def disable(self, request: Request, uuid_or_name: str) -> None:
        """Have no accelerator requests made of a profile any more."""
        profiles.enable_profile(request.caller, _key(uuid_or_name), enabled=False)

    @declare.operation(policies.DELETE, query=types.DELETE, success=204, faults=[404])
    def delete_all(self, request: Request, given: dict[str, Any]) -> None:
        """Delete several profiles."""
        profiles.delete_profiles(request.caller, [_key(item) for item in given["value"]])

    @declare.operation(policies.DELETE, member=_MEMBER, success=204)
    def delete_one(self, request: Request, uuid_or_name: str) -> None:
        """Delete a profile."""
        profiles.delete_profiles(request.caller, [_key(uuid_or_name)])

    @declare.operation(
        policies.CANDIDATES,
        since=_SINCE,
        member=_MEMBER,
        query=types.CANDIDATES_QUERY,
        answer=types.CandidateList,
        faults=[501],
    )
    def candidates(
        self, request: Request, uuid_or_name: str, given: dict[str, Any]
    ) -> dict[str, Any]:
        """List where what a profile asks for could be bound."""
        profile = profiles.get_profile(request.caller, _key(uuid_or_name))
        limit = min(given.get("limit", request.max_limit), request.max_limit)
        found = candidates.find(request.conf, profile.groups, most=request.max_limit)[:limit]
        ranks = {rank: place for place, rank in enumerate(sorted({each.rank for each in found}))}
        whole, may = [[plans.Part(groups=profile.groups)]], request.caller.may(host.GET_ONE)
        return {
            "candidates": [_candidate(each, ranks[each.rank]) for each in found],
            "reason": None if found else shortages.explain(request.conf, whole, of_hosts=may),
        }

    def views(
        self, request: Request, rows: Iterable[models.DeviceProfile]
    ) -> list[dict[str, Any]]:
        """Profiles, with whether there are devices for them."""
        shown = super().views(request, profiles := list(rows))
        if request.version >= versions.REGULAR:
            with db.reader() as session:
                misfits = fitting.why_none(session, [profile.groups for profile in profiles])
            for body, misfit in zip(shown, misfits, strict=True):
                body["fits"] = not misfit
                body["warnings"] += misfit
        return shown

    def view(self, request: Request, profile: models.DeviceProfile) -> dict[str, Any]:
        """A profile, for administrators with the projects with which it is shared."""
        projects: dict[str, Any] = {}
        if _shows_projects(request):
            projects["projects"] = sorted(shared.project_id for shared in profile.projects)
        return {
            "uuid": profile.uuid,
            "name": profile.name,
            "description": profile.description,
            "groups": _shown_groups(request, profile),
            "visibility": profile.visibility,
            **projects,
            "enabled": profile.enabled,
            "extra": profile.extra or {},
            "in_use": profile.in_use or 0,
            "warnings": trait_match.warnings(profile.groups) + profiles.warnings(profile.groups),
            # All that are shown are judged at once, in views().
            "fits": True,
            "created_at": timestamp(profile.created_at),
            "updated_at": timestamp(profile.updated_at),
            "links": [self_link(request, self.collection, profile.uuid)],
        }


def _candidate(candidate: candidates.Candidate, rank: int) -> dict[str, Any]:
    return {
        "hostname": candidate.hostname,
        "rank": rank,
        "reprogrammings": candidate.reprogrammings,
        "groups": [
            {
                "group": choice.group,
                "rp_uuid": choice.deployable.rp_uuid,
                "deployable_uuid": choice.deployable.uuid,
                "deployable_name": choice.deployable.name,
                "preferred": _is_preferred(choice),
                "reprogram": choice.reprogram,
            }
            for choice in candidate.choices
        ],
    }


def _is_preferred(choice: candidates.Chosen) -> bool | None:
    return not (choice.lacks_function or choice.lacks_traits) if choice.prefers else None


def _key(text: str) -> profiles.ProfileName:
    if uuid := arguments.find_uuid(text):
        return profiles.ProfileName("uuid", uuid)
    return profiles.ProfileName("name", text)


def _stored(request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a profile in the form in which they are stored.

    :raises Invalid: its groups contradict themselves
    """
    description = body.get("description")
    groups = profiles.read_groups(body["groups"])
    trait_match.refuse_groups(request.conf, groups)
    return {
        "name": body["name"],
        "extra": body.get("extra", {}),
        "groups": groups,
        "description": None if description is None else arguments.as_text(description),
        "visibility": body.get("visibility", profiles.PUBLIC),
        "projects": sorted(set(body.get("projects", ()))),
    }


def _shown_groups(request: Request, profile: models.DeviceProfile) -> list[dict[str, str]]:
    """The groups; clients that do not know taints, like Nova, are told what to ask Placement."""
    if request.version >= versions.REGULAR or not profile.taints:
        return profile.groups
    return [request_groups.with_taint_forbidden(group) for group in profile.groups]


def _shows_projects(request: Request) -> bool:
    """True if the caller may see with which projects a profile is shared."""
    return request.version >= versions.REGULAR and bool(request.caller.is_admin)


def _view_of_one(request: Request, profile: models.DeviceProfile) -> dict[str, Any]:
    # Up to 2.3 a single profile is shown in another order, and with other times, than in a list.
    updated_at = profile.updated_at
    return {
        "name": profile.name,
        "description": profile.description,
        "uuid": profile.uuid,
        "groups": _shown_groups(request, profile),
        "created_at": str(aware(profile.created_at)),
        "updated_at": str(None if updated_at is None else aware(updated_at)),
        "links": [self_link(request, "device_profiles", profile.uuid)],
    }
