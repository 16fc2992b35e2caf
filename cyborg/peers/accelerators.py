# SPDX-License-Identifier: Apache-2.0
"""Cyborg's own API, for what runs on a host and is no agent."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Self

import requests
from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common import errors, microversion
from cyborg.peers import answers, clients

_Document = dict[str, Any]


class ApiFailed(errors.CyborgError):
    """Cyborg, or Keystone, did not do what was asked, or cannot be reached."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        #: Of Cyborg's answer; None if there is none.
        self.status = status


class Api:
    """The accelerator API, as the options of a group say it is reached."""

    def __init__(self, conf: cfg.ConfigOpts, group: str, until: float | None = None) -> None:
        self._conf = conf
        self._group = group
        self._until = until

    def until(self, until: float) -> Self:
        """An API that waits for no answer longer than that, by the monotonic clock."""
        other = copy.copy(self)
        other._until = until  # noqa: SLF001 - of a copy
        return other

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The document of an answer; None if it has none.

        :raises ApiFailed: it is no success
        """
        answer = self._send(method, path, body)
        _check(answer)
        return answers.document(answer, dict) if answer.content else None

    def find(self, path: str) -> _Document | None:
        """The document that is there; None if there is none.

        :raises ApiFailed: that is not known
        """
        answer = self._send("GET", path)
        if answer.status_code == HTTPStatus.NOT_FOUND and _is_cyborgs(answer):
            return None
        _check(answer)
        found: _Document = answers.document(answer, dict)
        return found

    def rows(self, collection: str, **query: str) -> Iterator[_Document]:
        """Every row of a collection, page after page.

        :raises ApiFailed: it cannot be read
        """
        more = True
        while more:
            answer = self._send("GET", f"/{collection}", query=query)
            _check(answer)
            document = answers.document(answer, {collection: [{"uuid": str}]})
            page = document[collection]
            yield from page
            more = bool(page and document.get(f"{collection}_links"))
            if more:
                query = {**query, "marker": page[-1]["uuid"]}

    def delete(self, path: str) -> None:
        """Delete what is there, if it is there.

        :raises ApiFailed: it is not deleted
        """
        answer = self._send("DELETE", path)
        if answer.status_code not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND}:
            raise _refusal(answer)

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
    ) -> requests.Response:
        options: dict[str, Any] = {"raise_exc": False} | ({} if body is None else {"json": body})
        left = None if self._until is None else self._until - time.monotonic()
        try:
            with answers.within(left):
                return clients.proxy(self._conf, self._group).request(
                    path, method, params=query, microversion=microversion.FIRST, **options
                )
        except ka_exc.ClientException as exc:
            raise ApiFailed(f"The accelerator API cannot be used: {exc}") from exc


def _is_cyborgs(answer: requests.Response) -> bool:
    """True if Cyborg itself says it, and not a proxy before it."""
    try:
        return "errors" in answer.json()
    except answers.ODD:
        return False


def _check(answer: requests.Response) -> None:
    """Raise ApiFailed if an answer is an error."""
    if answer.status_code >= HTTPStatus.BAD_REQUEST:
        raise _refusal(answer)


def _refusal(answer: requests.Response) -> ApiFailed:
    try:
        said = str(answer.json()["errors"][0]["detail"])[:200]
    except answers.ODD:
        said = answer.text[:200]
    status = answer.status_code
    return ApiFailed(f"The accelerator API answers {status}: {said}", status)
