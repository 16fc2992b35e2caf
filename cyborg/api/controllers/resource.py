# SPDX-License-Identifier: Apache-2.0
"""The base of all resources: how a request finds its operation, lists and shows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from webob import exc

from cyborg.api import declare, pages, versions
from cyborg.api.representation import filled, self_link
from cyborg.api.request import Request
from cyborg.api.types import base, fields
from cyborg.db import paging

#: HTTP method and number of path segments behind the collection, and the method that serves it.
_METHODS = {
    ("GET", 0): "get_all",
    ("GET", 1): "get_one",
    ("POST", 0): "post",
    ("PUT", 1): "put_one",
    ("PATCH", 0): "patch_all",
    ("PATCH", 1): "patch_one",
    ("DELETE", 0): "delete_all",
    ("DELETE", 1): "delete_one",
}


def actions(**names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Actions that are served by methods of their names, by the HTTP method."""
    return {name: {method: name} for method, some in names.items() for name in some}


class Resource:
    """One collection. A subclass has the operations it serves, each declared, and no others."""

    #: Its name in paths.
    collection: ClassVar[str]
    #: The type of its members in answers.
    kind: ClassVar[type[base.Object]]
    #: What may follow a member in a path, and for each HTTP method the method that serves it.
    actions: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def find_handler(
        self, request: Request, segments: Sequence[str]
    ) -> tuple[declare.Declared, list[str]]:
        """The operation that the request asks for, and its arguments from the path.

        ``segments`` follow the collection in the path.

        :raises HTTPNotFound: no path of the resource has such segments
        :raises HTTPMethodNotAllowed: the path is served with other HTTP methods only
        """
        if len(segments) == 2:
            member, action = segments
            return choose(request, self._handlers(self.actions.get(action, {}))), [member]
        return choose(request, self._handlers(_served(len(segments)))), list(segments)

    def declared(self) -> Iterator[tuple[str, str, declare.Declared]]:
        """The HTTP method, the path behind the collection, and the handler of every operation."""
        for count in (0, 1):
            for method, handler in self._handlers(_served(count)).items():
                yield method, _member_path(handler), handler
        for action, served in self.actions.items():
            for method, handler in self._handlers(served).items():
                yield method, f"{_member_path(handler)}/{action}", handler

    def view(self, request: Request, row: Any) -> dict[str, Any]:
        """A row as answers show it: what is not told otherwise has the same name in the row."""
        told = self.told(request, row)
        if "links" in self.kind.names(request.version):
            told.setdefault("links", [self_link(request, self.collection, row.uuid)])
        return filled(self.kind, request.version, row, told)

    def told(self, request: Request, row: Any) -> dict[str, Any]:
        """The fields of an answer that are not those of the row."""
        raise NotImplementedError

    def views(self, request: Request, rows: Iterable[Any]) -> list[dict[str, Any]]:
        """Rows as answers at the microversion of the request show them."""
        shown = [self.view(request, row) for row in rows]
        for name in self.kind.absent(request.version):
            for body in shown:
                body.pop(name, None)
        return shown

    def page(
        self, request: Request, path: str, key: str, found: Sequence[Any], page: paging.Page
    ) -> dict[str, Any]:
        """The list of what is found, under ``key``, with a link to its next page if it has one."""
        rows, links = pages.cut(request, path, found, page)
        return {key: self.views(request, rows)} | ({f"{key}_links": links} if links else {})

    def _handlers(self, served: Mapping[str, str]) -> dict[str, declare.Declared]:
        return {
            method: getattr(self, name) for method, name in served.items() if hasattr(self, name)
        }


def lists(
    rule: str, kind: type[base.Object], key: str, **declared: Any
) -> Callable[[Callable[..., Sequence[Any]]], declare.Declared]:
    """Declare that the method below lists a collection under ``key``.

    It is called with the request, the page, and what the query narrows the list to by name, and
    returns the rows of the page.
    """

    def decorate(find: Callable[..., Sequence[Any]]) -> declare.Declared:
        @functools.wraps(find)
        def get_all(self: Resource, request: Request, given: dict[str, Any]) -> dict[str, Any]:
            wanted, page = pages.read(request, given)
            found = find(self, request, page, **wanted)
            return self.page(request, self.collection, key, found, page)

        return declare.operation(rule, answer=fields.page_of(kind, key), **declared)(get_all)

    return decorate


def shows(
    rule: str, kind: type[base.Object], **declared: Any
) -> Callable[[Callable[..., Any]], declare.Declared]:
    """Declare the method below, which returns a row, to answer with what it shows of it."""

    def decorate(find: Callable[..., Any]) -> declare.Declared:
        @functools.wraps(find)
        def show(self: Resource, request: Request, *arguments: Any) -> dict[str, Any]:
            (shown,) = self.views(request, [find(self, request, *arguments)])
            return shown

        return declare.operation(rule, answer=kind, **declared)(show)

    return decorate


def choose(request: Request, handlers: Mapping[str, declare.Declared]) -> declare.Declared:
    """The handler for the request's HTTP method among those of its path.

    :raises HTTPNotFound: there is no handler at all
    :raises HTTPMethodNotAllowed: there are handlers for other methods only
    """
    wanted = handlers.get(request.method)
    if wanted is not None and wanted.operation.since <= request.version:
        return wanted
    served = {
        method: handler
        for method, handler in handlers.items()
        if handler.operation.since <= request.version
    }
    why = None if wanted is None else versions.served_from(wanted.operation.since)
    if not served:
        raise exc.HTTPNotFound(why)
    raise exc.HTTPMethodNotAllowed(why, headers={"Allow": ", ".join(sorted(served))})


def _served(count: int) -> dict[str, str]:
    return {method: name for (method, wanted), name in _METHODS.items() if wanted == count}


def _member_path(handler: declare.Declared) -> str:
    member = handler.operation.member
    return "" if member is None else f"/{{{member.name}}}"
