# SPDX-License-Identifier: Apache-2.0
"""Placement's HTTP API, with typed results and errors."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import requests
from keystoneauth1 import adapter as ka_adapter
from oslo_config import cfg

from cyborg.common import errors
from cyborg.common.request_groups import RequestGroup
from cyborg.peers import answers, clients
from cyborg.placement import names as made_names
from cyborg.placement import tree

#: With it an allocation says what its consumer is.
_WITH_TYPES = "1.38"

#: 1.23 gives errors a code, 1.26 lets all of an inventory be reserved, 1.37 moves providers.
_MICROVERSION = "1.37"

_CUSTOM = "CUSTOM_"
#: Characters of what Placement says of a refusal.
_DETAIL_MAX = 1000

#: Seconds for which one thread waits until another has made a name. If Placement hangs, each asks
#: itself, and has to find a place for that.
_PATIENCE = 0.2

LOG = logging.getLogger(__name__)


class PlacementError(errors.ServiceUnavailable):
    """Placement does not serve us at present, whatever the request is."""


class RequestRefused(PlacementError):
    """Placement understood this request and refuses it."""


class NotAuthorized(PlacementError):
    """Our user may not do this in Placement."""


class NoSuchProvider(RequestRefused):
    """There is no such provider."""


class AlreadyExists(RequestRefused):
    """Another provider has this uuid or name."""


class InUse(RequestRefused):
    """The provider, or an inventory that would be removed, has allocations."""


class GenerationConflict(RequestRefused):
    """Somebody has changed the provider since it was read."""


_BY_CODE: dict[str, type[RequestRefused]] = {
    "placement.concurrent_update": GenerationConflict,
    "placement.duplicate_name": AlreadyExists,
    "placement.inventory.inuse": InUse,
    "placement.resource_provider.inuse": InUse,
}

#: Answers that are not about the content of the request.
_NOT_ABOUT_US = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.NOT_ACCEPTABLE,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


#: Shapes of answers.
_GENERATION = "resource_provider_generation"
_TRAITS: dict[str, Any] = {_GENERATION: int, "traits": [str]}
_HELD: dict[str, Any] = {"allocations": {str: {"resources": {str: int}}}}
_HELD_BY = _HELD | {"consumer_generation": (int, None)}
_LISTED = {"uuid": str, "name": str, "parent_provider_uuid": (str, None), "generation": int}
_CANDIDATES = {
    "allocation_requests": [{"mappings": {str: [str]}}],
    "provider_summaries": {str: {"resources": {str: {"capacity": int, "used": int}}}},
}

#: What the types of the consumers begin with that are allocations of Cyborg's.
OWN_TYPES = "CYBORG_"
#: The types of instances: that of today, and that of consumers made before there were types.
NOVAS_TYPES = ("INSTANCE", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProvider:
    """A provider as lists show it."""

    uuid: str
    name: str
    parent_uuid: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of an allocation, as Placement keeps it."""

    project_id: str
    user_id: str
    consumer_type: str

    @property
    def is_ours(self) -> bool:
        """The consumer is one of an allocation of Cyborg's."""
        return self.consumer_type.startswith(OWN_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """The allocation of a consumer: amounts by resource class, by provider."""

    amounts: Mapping[str, Mapping[str, int]]
    owner: Owner
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Combinations:
    """Combinations of providers with room for some groups, and how much room those have."""

    #: One provider a group, in the order of the groups.
    providers: Sequence[tuple[str, ...]]
    #: What is free of each resource class, by provider.
    free: Mapping[str, Mapping[str, int]]
    #: How much of all classes is used, by provider.
    used: Mapping[str, int]


@dataclass(slots=True)
class _Known:
    """Facts of one Placement that this process need not ask again."""

    names: set[str] = field(default_factory=set)
    #: Held by the thread that makes a name, so that others do not make it too.
    naming: threading.Lock = field(default_factory=threading.Lock)
    roots: dict[str, str] = field(default_factory=dict)
    may_reshape: bool = True


_lock = threading.Lock()
_known: weakref.WeakKeyDictionary[ka_adapter.Adapter, _Known] = weakref.WeakKeyDictionary()


class Client:
    """The Placement of ``[placement]``, for one piece of work.

    Every method raises :class:`PlacementError` or one of its subclasses, and keystoneauth's
    ``ClientException`` if Placement or Keystone cannot be reached.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: str | None = None) -> None:
        self._proxy = clients.proxy(conf, "placement")
        #: For which host the names are made that are missing.
        self._host = host
        with _lock:
            self._known = _known.setdefault(self._proxy, _Known())

    def find_tree(self, root_name: str) -> list[ListedProvider]:
        """All providers of the tree whose root has that name, the root first; or none."""
        root_uuid = self._known.roots.get(root_name)
        if root_uuid is not None:
            found = self._list(in_tree=root_uuid)
            if _root_first(found, root_name):
                return found
        named = self._list(name=root_name)
        if not named:
            self._known.roots.pop(root_name, None)
            return []
        self._known.roots[root_name] = named[0].uuid
        found = self._list(in_tree=named[0].uuid)
        return found if _root_first(found, root_name) else []

    def find_provider(self, uuid: str) -> ListedProvider | None:
        """The provider with that uuid, in whichever tree it is."""
        found = self._list(uuid=uuid)
        return found[0] if found else None

    def read_provider(self, listed: ListedProvider) -> tree.Provider:
        """The provider with everything on it.

        :raises GenerationConflict: it changed while it was read
        """
        path = f"/resource_providers/{listed.uuid}"
        inventories = self._call("GET", f"{path}/inventories", shape=_INVENTORIES)
        traits = self._call("GET", f"{path}/traits", shape=_TRAITS)
        generation = inventories[_GENERATION]
        if generation != traits[_GENERATION]:
            raise GenerationConflict(f"Provider {listed.uuid} changed while it was read")
        return tree.Provider(
            uuid=listed.uuid,
            name=listed.name,
            parent_uuid=listed.parent_uuid,
            inventories=_inventories(inventories),
            traits=frozenset(traits["traits"]),
            generation=generation,
        )

    def is_withdrawn(self, uuid: str, classes: Collection[str]) -> bool:
        """Everything of these resource classes is reserved on the provider.

        :raises NoSuchProvider: there is no such provider
        """
        path = f"/resource_providers/{uuid}/inventories"
        found = _inventories(self._call("GET", path, shape=_INVENTORIES))
        ours = (inv for name, inv in found.items() if name in classes)
        return all(inv.reserved >= inv.total for inv in ours)

    def allocations(self, uuid: str) -> dict[str, dict[str, int]]:
        """The allocations of the provider: amounts by resource class, by consumer.

        :raises NoSuchProvider: there is no such provider
        """
        path = f"/resource_providers/{uuid}/allocations"
        found = self._call("GET", path, shape=_HELD)["allocations"]
        return {consumer: dict(held["resources"]) for consumer, held in found.items()}

    def drop_allocation(self, consumer: str, uuid: str) -> None:
        """Take from a consumer what it has of one provider, and nothing else.

        :raises GenerationConflict: its allocations have changed meanwhile
        """
        path = f"/allocations/{consumer}"
        found = self._call("GET", path, shape=_HELD_BY)
        if uuid not in found["allocations"]:
            return
        kept = {
            provider: {"resources": held["resources"]}
            for provider, held in found["allocations"].items()
            if provider != uuid
        }
        who = {key: found.get(key) for key in ("project_id", "user_id", "consumer_generation")}
        self._call("PUT", path, {"allocations": kept, **who})

    def find_allocations(self, consumer: str) -> Holdings | None:
        """The allocation of a consumer; None if it has nothing."""
        found = self._call(
            "GET", f"/allocations/{consumer}", shape=_HELD_BY, microversion=_WITH_TYPES
        )
        if not found["allocations"]:
            return None
        owner = {name: str(found.get(name)) for name in ("project_id", "user_id", "consumer_type")}
        return Holdings(
            amounts={
                provider: dict(held["resources"]) for provider, held in found["allocations"].items()
            },
            owner=Owner(**owner),
            generation=found.get("consumer_generation"),
        )

    def hold(
        self,
        consumer: str,
        owner: Owner,
        amounts: Mapping[str, Mapping[str, int]],
        generation: int | None,
    ) -> None:
        """Give a consumer exactly that: all of it, or nothing new.

        ``generation`` is that of what it has now; None if it has nothing.

        :raises GenerationConflict: it has something else, or a provider was being changed
        :raises RequestRefused: there is no room for it
        """
        body = {
            "allocations": {name: {"resources": dict(has)} for name, has in amounts.items()},
            "consumer_generation": generation,
            **dataclasses.asdict(owner),
        }
        self._call("PUT", f"/allocations/{consumer}", body, microversion=_WITH_TYPES)

    def find_candidates(
        self, groups: Sequence[RequestGroup], limit: int, root: str | None = None
    ) -> Combinations:
        """The places where all groups have room, below the provider ``root`` if that is given."""
        try:
            return self._find_candidates(groups, limit, root)
        except RequestRefused:
            # A name that we had made may have been removed since: it is made again.
            return self._find_candidates(groups, limit, root)

    def _find_candidates(
        self, groups: Sequence[RequestGroup], limit: int, root: str | None
    ) -> Combinations:
        query = {"limit": str(limit), "group_policy": "none"}
        for number, group in enumerate(groups):
            self._ensure("/resource_classes", group.resources)
            self._ensure("/traits", group.required | group.forbidden)
            amounts = (f"{name}:{amount}" for name, amount in sorted(group.resources.items()))
            query[f"resources_{number}"] = ",".join(amounts)
            forbidden = (f"!{name}" for name in sorted(group.forbidden))
            if traits := [*sorted(group.required), *forbidden]:
                query[f"required_{number}"] = ",".join(traits)
            if root is not None:
                query[f"in_tree_{number}"] = root
        found = self._call("GET", "/allocation_candidates", shape=_CANDIDATES, query=query)
        return _combinations(found, len(groups))

    def create_provider(self, name: str, uuid: str | None, parent_uuid: str | None) -> int:
        """Make a provider, a root if it has no parent, and return its generation."""
        body = {"name": name, "uuid": uuid, "parent_provider_uuid": parent_uuid}
        given = {key: value for key, value in body.items() if value is not None}
        shape = {"generation": int}
        return int(self._call("POST", "/resource_providers", given, shape=shape)["generation"])

    def place_provider(self, uuid: str, name: str, parent_uuid: str | None) -> int:
        """Set the name and the parent of a provider, and return its generation."""
        body = {"name": name, "parent_provider_uuid": parent_uuid}
        path, shape = f"/resource_providers/{uuid}", {"generation": int}
        return int(self._call("PUT", path, body, shape=shape)["generation"])

    def delete_provider(self, uuid: str) -> None:
        """Remove a provider and everything on it."""
        path = f"/resource_providers/{uuid}"
        self._call("DELETE", path)
        if self.find_provider(uuid):
            raise PlacementError(f"Placement said yes to DELETE {path} and has kept it")

    def set_inventories(self, uuid: str, inventories: tree.Inventories, generation: int) -> int:
        """Replace all inventories of a provider, and return its new generation."""
        self._ensure("/resource_classes", inventories)
        path = f"/resource_providers/{uuid}/inventories"
        return self._replace(path, _inventories_body(inventories, generation), _INVENTORIES)

    def reshape(self, providers: Iterable[tree.Provider]) -> bool:
        """Replace all inventories of several providers at once: of all of them, or of none.

        It needs the role ``service`` in Placement. False, and nothing is changed, without it.
        """
        if not self._known.may_reshape:
            return False
        wanted = {
            provider.uuid: _inventories_body(provider.inventories, provider.generation)
            for provider in providers
        }
        self._ensure(
            "/resource_classes", {name for each in wanted.values() for name in each["inventories"]}
        )
        try:
            self._call("POST", "/reshaper", {"inventories": wanted, "allocations": {}})
        except NotAuthorized as exc:
            self._known.may_reshape = False
            LOG.info("Inventories are sent to Placement one by one: %s", exc)
            return False
        return True

    def set_traits(self, uuid: str, traits: Iterable[str], generation: int) -> int:
        """Replace all traits of a provider, and return its new generation."""
        self._ensure("/traits", traits)
        body = {_GENERATION: generation, "traits": sorted(traits)}
        return self._replace(f"/resource_providers/{uuid}/traits", body, _TRAITS)

    def _replace(self, path: str, body: dict[str, Any], shape: Any) -> int:
        stored = self._call("PUT", path, body, shape=shape)
        found = sorted(stored["traits"]) if shape is _TRAITS else stored["inventories"]
        if found not in body.values():
            raise PlacementError(f"Placement said yes to PUT {path} and has stored something else")
        return int(stored[_GENERATION])

    def _ensure(self, collection: str, names: Iterable[str]) -> None:
        """Make custom resource classes or traits, before a provider can have them."""
        for name in sorted(names):
            path = f"{collection}/{name}"
            if not name.startswith(_CUSTOM) or path in self._known.names:
                continue
            is_ours = self._known.naming.acquire(timeout=_PATIENCE)
            try:
                if path not in self._known.names:
                    self._make(path)
                    self._known.names.add(path)
            finally:
                if is_ours:
                    self._known.naming.release()

    def _make(self, path: str) -> None:
        """Make a name, unless it is there, as one of those that are swept."""
        with contextlib.suppress(NoSuchProvider):
            self._send("GET", path)
            return
        made_names.note(path, self._host)
        if self._send("PUT", path).status_code == HTTPStatus.CREATED:
            made_names.note(path, self._host, is_made=True)
        else:
            made_names.drop(path)

    def remove_name(self, path: str) -> bool:
        """Remove a resource class or a trait; False if a provider has it."""
        self._known.names.discard(path)
        try:
            self._send("DELETE", path)
        except NoSuchProvider:
            return True
        except RequestRefused:
            return False
        return True

    def _list(self, **query: str) -> list[ListedProvider]:
        shape = {"resource_providers": [_LISTED]}
        found = self._call("GET", "/resource_providers", shape=shape, query=query)
        return [
            ListedProvider(
                uuid=item["uuid"],
                name=item["name"],
                parent_uuid=item.get("parent_provider_uuid"),
                generation=item["generation"],
            )
            for item in found["resource_providers"]
        ]

    def _call(
        self, method: str, path: str, body: Any = None, *, shape: Any = None, **how: Any
    ) -> Any:
        """The document of that shape that :meth:`_send` is answered."""
        response = self._send(method, path, body, **how)
        return None if shape is None else answers.document(response, shape)

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: dict[str, str] | None = None,
        microversion: str = _MICROVERSION,
    ) -> requests.Response:
        response = self._proxy.request(
            path, method, json=body, params=query, microversion=microversion
        )
        if response.status_code == HTTPStatus.BAD_REQUEST:
            # An operator may have removed a trait or class that we made, or restored a backup that
            # is older: make it again next time.
            self._known.names.clear()
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            raise _error(f"{method} {path}", response)
        return response


def _combinations(found: Any, groups: int) -> Combinations:
    """The candidates for so many groups, as Placement has answered."""
    its = {uuid: each["resources"] for uuid, each in found["provider_summaries"].items()}
    with answers.reading("Placement"):
        providers = [
            tuple(request["mappings"][f"_{number}"][0] for number in range(groups))
            for request in found["allocation_requests"]
        ]
        if not {uuid for uuids in providers for uuid in uuids} <= its.keys():
            raise LookupError("a provider without a summary")
    return Combinations(
        providers=providers,
        free={
            uuid: {name: each["capacity"] - each["used"] for name, each in amounts.items()}
            for uuid, amounts in its.items()
        },
        used={uuid: sum(each["used"] for each in has.values()) for uuid, has in its.items()},
    )


def _root_first(found: list[ListedProvider], root_name: str) -> bool:
    """Sort a tree so that its root is first; False if the root no longer has that name."""
    found.sort(key=lambda listed: listed.parent_uuid is not None)
    return bool(found) and found[0].name == root_name


def _inventories_body(inventories: tree.Inventories, generation: int) -> dict[str, Any]:
    return {
        _GENERATION: generation,
        "inventories": {name: dataclasses.asdict(inv) for name, inv in inventories.items()},
    }


_INVENTORY = {item.name: float for item in dataclasses.fields(tree.Inventory)}
_INVENTORIES = {_GENERATION: int, "inventories": {str: _INVENTORY}}


def _inventories(body: dict[str, Any]) -> tree.Inventories:
    return {
        name: tree.Inventory(**{key: values[key] for key in _INVENTORY})
        for name, values in body["inventories"].items()
    }


def _error(call: str, response: requests.Response) -> PlacementError:
    try:
        (first, *_) = answers.document(response, {"errors": [dict]})["errors"]
        code, detail = str(first.get("code", "")), str(first["detail"])[:_DETAIL_MAX]
    except (answers.Unusable, *answers.ODD):
        code, detail = "", str(response.reason)
    detail = "".join(each if each.isprintable() else "?" for each in " ".join(detail.split()))
    status = response.status_code
    kind: Callable[[str], PlacementError]
    if status == HTTPStatus.FORBIDDEN:
        kind = NotAuthorized
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _NOT_ABOUT_US:
        kind = PlacementError
    elif status == HTTPStatus.NOT_FOUND:
        kind = NoSuchProvider
    else:
        kind = _BY_CODE.get(code, RequestRefused)
    return kind(f"Placement answered {status} to {call}: {detail}")
