# SPDX-License-Identifier: Apache-2.0
"""What the controllers of all resources have in common: how a request finds its operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from webob import exc

from cyborg.api import declare
from cyborg.api.request import Request

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


class Resource:
    """One collection. A subclass has the operations it serves, each declared, and no others."""

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

    def _handlers(self, served: Mapping[str, str]) -> dict[str, declare.Declared]:
        return {
            method: getattr(self, name) for method, name in served.items() if hasattr(self, name)
        }


def choose(request: Request, handlers: Mapping[str, declare.Declared]) -> declare.Declared:
    """The handler for the request's HTTP method among those of its path.

    :raises HTTPNotFound: there is no handler at all
    :raises HTTPMethodNotAllowed: there are handlers for other methods only
    """
    served = {
        method: handler
        for method, handler in handlers.items()
        if handler.operation.since <= request.version
    }
    if not served:
        raise exc.HTTPNotFound
    if request.method not in served:
        raise exc.HTTPMethodNotAllowed(headers={"Allow": ", ".join(sorted(served))})
    return served[request.method]


def _served(count: int) -> dict[str, str]:
    return {method: name for (method, wanted), name in _METHODS.items() if wanted == count}


def _member_path(handler: declare.Declared) -> str:
    member = handler.operation.member
    return "" if member is None else f"/{{{member.name}}}"
