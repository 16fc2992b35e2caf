# SPDX-License-Identifier: Apache-2.0
"""The accelerator API, with the rights of the signed-in user and in the region that is chosen."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, NamedTuple

from django.conf import settings
from django.http import HttpRequest
from horizon import exceptions
from horizon.utils.memoized import memoized
from keystoneauth1 import exceptions as ka_exc
from keystoneauth1 import session, token_endpoint
from openstack import connection
from openstack import exceptions as sdk_exc
from openstack import utils as sdk_utils
from openstack_dashboard import policy
from openstack_dashboard.api import base
from openstack_dashboard.utils import settings as dashboard_settings

#: What lists have, and since which microversion; the command line goes by it, too.
_TABLE: Mapping[str, Any] = json.loads(
    resources.files("cyborg.osc").joinpath("lists.json").read_text()
)
LISTS: Mapping[str, Any] = _TABLE["lists"]
_OLDEST, NEWEST = _TABLE["oldest"], _TABLE["newest"]
#: Seconds for which a service may be silent.
_PATIENCE = 60

Row = dict[str, Any]


class Refused(Exception):
    """The sentence with which a service refuses a request, or why it cannot be asked."""


class Page(NamedTuple):
    """The rows of a page, and whether there are others before and after it."""

    rows: list[Row]
    has_before: bool = False
    has_after: bool = False


class Cyborg:
    """The accelerator API at the newest microversion that both sides know."""

    def __init__(self, request: HttpRequest) -> None:
        # The request itself would live as long as what is remembered of it.
        self._page_size = page_size(request)
        with _sentences():
            known = connection.Connection(
                session=_session(request, "accelerator"), region_name=request.user.services_region
            )
            self._proxy = known.accelerator
            found = sdk_utils.maximum_supported_microversion(self._proxy, NEWEST)
        self.microversion: str = found or _OLDEST
        self.is_newest = self.microversion == NEWEST
        if found is None:
            # It has not said what it serves, which has other reasons than its age.
            self.call("GET", "/")

    def need(self, *versions: str) -> None:
        """Raise Refused if one of these microversions, or the newest, is not served."""
        if {*versions} != {_OLDEST} and not self.is_newest:
            raise Refused(
                f"This needs microversion {NEWEST} of the accelerator API, which is not served: "
                f"{self.microversion} is. Ask your administrator for a newer Cyborg."
            )

    def call(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None
    ) -> Any:
        """The document of the answer; None if it has none.

        :raises Refused: the API does not do it
        """
        options: dict[str, Any] = {} if body is None else {"json": body}
        given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        with _sentences():
            response = self._proxy.request(
                path, method, params=given, microversion=self.microversion, **options
            )
            sdk_exc.raise_from_response(response)
            return response.json() if response.content else None

    def page(
        self, collection: str, query: Mapping[str, Any], *, after: str = "", before: str = ""
    ) -> Page:
        """A page of a collection: what follows one of its items, or what is before one.

        :raises Refused: the API does not show it
        """
        known = LISTS[collection]
        self.need(known["since"], *(known["arguments"][name]["since"] for name in query))
        asked = dict(query)
        if self.is_newest:
            asked |= {"limit": self._page_size}
            asked |= {"marker": before, "sort_dir": "desc"} if before else {"marker": after}
        answer = self.call("GET", f"/{collection}", query=asked)
        rows, goes_on = answer[known["key"]], f"{known['key']}_links" in answer
        if before:
            return Page(rows[::-1], has_before=goes_on, has_after=True)
        return Page(rows, has_before=bool(after), has_after=goes_on)


@memoized
def cyborg(request: HttpRequest) -> Cyborg:
    """The accelerator API for all that one page asks.

    :raises Refused: it cannot be found
    """
    return Cyborg(request)


def is_newest(request: HttpRequest) -> bool:
    """Whether the API has all that this knows; not if it cannot be found."""
    try:
        return cyborg(request).is_newest
    except Refused:
        return False


def page_size(request: HttpRequest) -> int:
    """The rows of a page, as the user has chosen."""
    return int(dashboard_settings.get_page_size(request))


def look_up(request: HttpRequest, service_type: str, path: str, **headers: str) -> Any:
    """What Keystone or Placement answers.

    :raises Refused: it does not answer, or not that
    """
    with _sentences():
        root = base.url_for(request, service_type).rstrip("/").removesuffix("/v3")
        return _session(request, service_type).get(f"{root}{path}", headers=headers).json()


def may(request: HttpRequest, rule: str) -> bool:
    """Whether the policy lets the user do what the rule is about."""
    return bool(policy.check((("accelerator", rule),), request))


def quoted(text: str) -> str:
    """A name as the segment of a path."""
    return urllib.parse.quote(text, safe="")


def _session(request: HttpRequest, service_type: str) -> session.Session:
    url = base.url_for(request, service_type)
    auth = token_endpoint.Token(url, request.user.token.id)
    verify = not settings.OPENSTACK_SSL_NO_VERIFY and (settings.OPENSTACK_SSL_CACERT or True)
    return session.Session(auth=auth, verify=verify, timeout=_PATIENCE, app_name="horizon")


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    """Whatever goes wrong, as a sentence; a token that is no longer good leads to the login."""
    try:
        yield
    except (sdk_exc.HttpException, ka_exc.HttpError) as exc:
        if getattr(exc, "http_status", None) == 401 or getattr(exc, "status_code", None) == 401:
            raise exceptions.NotAuthenticated from exc
        raise Refused(str(exc.details or exc)) from exc
    except (
        ka_exc.ClientException, sdk_exc.SDKException, exceptions.ServiceCatalogException, ValueError
    ) as exc:
        raise Refused(f"The service cannot be asked: {exc}") from exc
