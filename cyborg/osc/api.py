# SPDX-License-Identifier: Apache-2.0
"""Requests to the accelerator API, through the accelerator proxy of openstacksdk."""

from __future__ import annotations

import itertools
import json
import time
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from keystoneauth1 import discover
from openstack import exceptions as sdk_exceptions
from openstack import utils as sdk_utils
from osc_lib import exceptions

#: The table of the API that these commands use; ``tools/cli_table.py`` writes it.
TABLE: Mapping[str, Any] = json.loads(
    resources.files("cyborg.osc").joinpath("lists.json").read_text()
)
#: The oldest microversion, which a server that does not say has, and the newest one known here.
OLDEST, NEWEST = TABLE["oldest"], TABLE["newest"]

#: The most objects that an error names.
_NAMED_MAX = 10
#: Seconds between two looks at what is waited for.
_POLL = 1

Row = dict[str, Any]


class Api:
    """The accelerator API at the microversion that the user chose, or at the newest of both."""

    def __init__(self, client_manager: Any) -> None:
        self._connection = client_manager.sdk_connection
        self._proxy = client_manager.cyborg
        chosen = self._proxy.default_microversion
        self.microversion: str | None = chosen or sdk_utils.maximum_supported_microversion(
            self._proxy, NEWEST
        )
        self._used = self.microversion or OLDEST

    def has_all(self) -> bool:
        """True if requests are sent at the newest microversion, or at a newer one."""
        used = discover.normalize_version_number(self._used)
        return bool(used >= discover.normalize_version_number(NEWEST))

    def need(self, *versions: str) -> None:
        """Raise CommandError if one of these microversions, or the newest, is not permitted."""
        if {*versions} != {OLDEST} and not self.has_all():
            if self.microversion is None:
                # It has not said what it serves, which has other reasons than its age.
                self.call("GET", "/")
            raise exceptions.CommandError(
                f"This needs microversion {NEWEST} of the accelerator API, and "
                f"{self._used} is used. Leave out --os-accelerator-api-version, or "
                "ask your administrator for a newer server."
            )

    def call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The document of the answer; None if it has none.

        :raises CommandError: the server refused
        """
        options: dict[str, Any] = {} if body is None else {"json": body}
        response = self._proxy.request(
            path, method, params=_written(query), microversion=self.microversion, **options
        )
        try:
            sdk_exceptions.raise_from_response(response)
        except sdk_exceptions.HttpException as exc:
            told = str(exc.details).replace("force=true", "--force")
            raise exceptions.CommandError(
                f"{told} (HTTP {response.status_code}, request {exc.request_id})"
            ) from exc
        try:
            return response.json() if response.content else None
        except ValueError as exc:
            raise exceptions.CommandError(f"{response.url} is not the accelerator API.") from exc

    def looks(self, path: str) -> Iterator[Row]:
        """The document at a path, again and again."""
        while True:
            yield self.call("GET", path)
            time.sleep(_POLL)

    def list(
        self, collection: str, query: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Iterator[Row]:
        """Every row of a collection, page after page; with a limit at most so many."""
        wanted, of = query or {}, key or collection
        rows = (row for answer in self.answers(collection, wanted, of) for row in answer[of])
        return itertools.islice(rows, wanted.get("limit"))

    def answers(self, collection: str, query: Mapping[str, Any], key: str) -> Iterator[Row]:
        """The whole answer with each page of a collection, whose rows are under ``key``."""
        asked: Mapping[str, Any] | None = query
        while asked is not None:
            answer = self.call("GET", f"/{collection}", query=asked)
            yield answer
            links = [urllib.parse.urlsplit(link["href"]) for link in answer.get(f"{key}_links", ())]
            asked = urllib.parse.parse_qs(links[0].query) if links else None

    def deployable(self, text: str) -> Row:
        """The deployable of this uuid or name.

        :raises CommandError: there is none
        """
        return self._member("deployables", "deployable", text)

    def _member(self, collection: str, kind: str, text: str) -> Row:
        if is_uuid(text):
            found: Row = self.call("GET", f"/{collection}/{text}")
            return found
        named = self._named(collection, text)
        if named is None:
            raise exceptions.CommandError(
                f"No {kind} is called '{text}'; `{kind} list` shows them."
            )
        return named

    def _named(self, collection: str, text: str) -> Row | None:
        self.need()
        return next(self.list(collection, {"name": text}), None)

    def deployable_uuid(self, text: str) -> str:
        """The uuid of the deployable of this uuid or name.

        :raises CommandError: there is none
        """
        return str(self.deployable(text)["uuid"])

    def device_uuid(self, text: str) -> str:
        """The device of this uuid, or the one that has the deployable of this name.

        :raises CommandError: there is none
        """
        if is_uuid(text):
            return text
        found = self._named("deployables", text)
        if found is None:
            raise exceptions.CommandError(
                f"No device is called '{text}'; give its uuid, or the name of one of its "
                "deployables. `device list` and `deployable list` show them."
            )
        return str(found["device_uuid"])

    def provider_uuid(self, text: str) -> str:
        """The resource provider of this uuid, or that of the deployable of this name.

        :raises CommandError: there is none
        """
        return text if is_uuid(text) else str(self.deployable(text)["rp_uuid"])

    def pool(self, text: str) -> Row:
        """The function pool of this uuid or name.

        :raises CommandError: there is none
        """
        self.need()
        return self._member("function_pools", "function pool", text)

    def consumer_uuid(self, text: str) -> str:
        """The consumer of this uuid, or the one of this name that has an allocation.

        :raises CommandError: there is none, or there are several
        """
        self.need()
        if is_uuid(text):
            return text
        query = {"consumer_name": text, "limit": _NAMED_MAX}
        found = [row["uuid"] for row in self.list("allocations", query)]
        if len(found) == 1:
            return str(found[0])
        if not found:
            raise exceptions.CommandError(
                f"No consumer with an allocation is called '{text}'; `allocation list` shows them."
            )
        raise exceptions.CommandError(
            f"Several consumers are called '{text}'; name one by its uuid: "
            f"{', '.join(found[:_NAMED_MAX])}."
        )

    def server_uuid(self, text: str) -> str:
        """The server of this uuid or name, which Nova is asked for."""
        return text if is_uuid(text) else self._found(self._connection.compute.find_server, text)

    def image_uuid(self, text: str) -> str:
        """The image of this uuid or name, which Glance is asked for."""
        return text if is_uuid(text) else self._found(self._connection.image.find_image, text)

    def project_id(self, text: str) -> str:
        """The project of this id or name, which Keystone is asked for."""
        # Without Keystone there is no name of a project, and any text may be an id.
        find = getattr(self._connection.identity, "find_project", None)
        return text if find is None or is_uuid(text) else self._found(find, text)

    def _found(self, find: Any, text: str) -> str:
        try:
            return str(find(text, ignore_missing=False).id)
        except sdk_exceptions.SDKException as exc:
            told = getattr(exc, "details", None) or exc
            raise exceptions.CommandError(f"'{text}' cannot be found by its name: {told}") from exc


def is_uuid(text: str) -> bool:
    """True if the text is a uuid, with hyphens or without."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _written(query: Mapping[str, Any] | None) -> dict[str, Any]:
    """A query with what is given, as it is written in a URL."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in given.items()
    }
