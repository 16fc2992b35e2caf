# SPDX-License-Identifier: Apache-2.0
"""``/v2/device_profiles``: what consumers may ask for, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cyborg import profiles
from cyborg.api import arguments, declare, pages, versions
from cyborg.api.controllers.resource import Resource
from cyborg.api.representation import aware, self_link, timestamp
from cyborg.api.request import Request
from cyborg.api.schemas import device_profiles as schemas
from cyborg.arqs import candidates
from cyborg.db import models
from cyborg.policies import device_profile as policies

_NAME = "req_devprof_list"


class DeviceProfiles(Resource):
    """Device profiles."""

    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {"candidates": {"GET": "candidates"}}

    @declare.operation(policies.GET_ALL, query=schemas.QUERY, answer=schemas.MANY)
    def get_all(self, request: Request, given: dict[str, Any]) -> dict[str, Any]:
        """List profiles."""
        wanted, page = pages.read(request, given)
        names = wanted.pop("name", None)
        found = profiles.list_profiles(
            request.caller, page, names=names, with_projects=_shows_projects(request), **wanted
        )
        return pages.answer(request, "device_profiles", "device_profiles", found, page, _view)

    @declare.operation(policies.GET_ONE, member=schemas.MEMBER, answer=schemas.ONE)
    def get_one(self, request: Request, uuid_or_name: str) -> dict[str, Any]:
        """Show a profile."""
        key = _key(uuid_or_name)
        if key.field == "name":
            versions.require(request.version, versions.PROFILE_BY_NAME)
        profile = profiles.get_profile(request.caller, key)
        if request.version >= versions.REGULAR:
            return _view(request, profile)
        return {"device_profile": _view_of_one(request, profile)}

    @declare.operation(
        policies.CREATE,
        body=declare.Body(name=_NAME, schema=schemas.CREATE),
        success=201,
        answer=schemas.PROFILE,
        faults=[409],
    )
    def post(self, request: Request, body: Any) -> dict[str, Any]:
        """Create a profile."""
        new = body if request.version >= versions.REGULAR else body[0]
        uuid = arguments.stored_uuid(new["uuid"]) if "uuid" in new else None
        return _view(request, profiles.create_profile(**_stored(new), uuid=uuid))

    @declare.operation(
        policies.UPDATE,
        member=schemas.MEMBER,
        body=declare.Body(name=_NAME, schema=schemas.REPLACE),
        answer=schemas.PROFILE,
        since=versions.PROFILE_VISIBILITY,
        faults=[409],
    )
    def put_one(self, request: Request, uuid_or_name: str, body: Any) -> dict[str, Any]:
        """Replace a profile."""
        key = _key(uuid_or_name)
        return _view(request, profiles.replace_profile(request.caller, key, **_stored(body)))

    @declare.operation(
        policies.DELETE, query=schemas.DELETE, required=["value"], success=204, faults=[404]
    )
    def delete_all(self, request: Request, given: dict[str, Any]) -> None:
        """Delete several profiles."""
        profiles.delete_profiles(request.caller, [_key(item) for item in given["value"]])

    @declare.operation(policies.DELETE, member=schemas.MEMBER, success=204)
    def delete_one(self, request: Request, uuid_or_name: str) -> None:
        """Delete a profile."""
        profiles.delete_profiles(request.caller, [_key(uuid_or_name)])

    @declare.operation(
        policies.CANDIDATES,
        since=versions.FUNCTION_POOLS,
        member=schemas.MEMBER,
        query=schemas.CANDIDATES_QUERY,
        answer=schemas.CANDIDATES,
        faults=[501],
    )
    def candidates(
        self, request: Request, uuid_or_name: str, given: dict[str, Any]
    ) -> dict[str, Any]:
        """List where what a profile asks for could be bound."""
        profile = profiles.get_profile(request.caller, _key(uuid_or_name))
        limit = min(given.get("limit", request.max_limit), request.max_limit)
        found = candidates.find(
            request.conf, profile.groups, most=request.max_limit, limit=limit
        )
        return {"candidates": [_candidate(candidate) for candidate in found]}


def _candidate(candidate: candidates.Candidate) -> dict[str, Any]:
    return {
        "hostname": candidate.hostname,
        "reprogrammings": candidate.reprogrammings,
        "groups": [
            {
                "group": choice.group,
                "rp_uuid": choice.deployable.rp_uuid,
                "deployable_uuid": choice.deployable.uuid,
                "preferred": not (choice.lacks_function or choice.lacks_traits),
                "reprogram": choice.reprogram,
            }
            for choice in candidate.choices
        ],
    }


def _key(text: str) -> profiles.Key:
    uuid = arguments.find_uuid(text)
    return profiles.Key("name", text) if uuid is None else profiles.Key("uuid", uuid)


def _stored(body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a profile in the form in which they are stored."""
    description = body.get("description")
    return {
        "name": body["name"],
        "groups": profiles.read_groups(body["groups"]),
        "description": None if description is None else arguments.as_text(description),
        "visibility": body.get("visibility", profiles.PUBLIC),
        "projects": sorted(set(body.get("projects", ()))),
    }


def _shows_projects(request: Request) -> bool:
    """Whether the caller may see with which projects a profile is shared."""
    return request.version >= versions.PROFILE_VISIBILITY and bool(request.caller.is_admin)


def _view(request: Request, profile: models.DeviceProfile) -> dict[str, Any]:
    sharing: dict[str, Any] = {}
    if request.version >= versions.PROFILE_VISIBILITY:
        sharing["visibility"] = profile.visibility
    if _shows_projects(request):
        sharing["projects"] = sorted(shared.project_id for shared in profile.projects)
    return {
        "uuid": profile.uuid,
        "name": profile.name,
        "description": profile.description,
        "groups": profile.groups,
        **sharing,
        "created_at": timestamp(profile.created_at),
        "updated_at": timestamp(profile.updated_at),
        "links": [self_link(request, "device_profiles", profile.uuid)],
    }


def _view_of_one(request: Request, profile: models.DeviceProfile) -> dict[str, Any]:
    # Up to 2.3 a single profile is shown in another order, and with other times, than in a list.
    updated_at = profile.updated_at
    return {
        "name": profile.name,
        "description": profile.description,
        "uuid": profile.uuid,
        "groups": profile.groups,
        "created_at": str(aware(profile.created_at)),
        "updated_at": str(None if updated_at is None else aware(updated_at)),
        "links": [self_link(request, "device_profiles", profile.uuid)],
    }
