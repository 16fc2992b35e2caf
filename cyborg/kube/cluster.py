# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' API, by its official client: claims, slices, and this node.

Answers are read as plain data, since the models of the client refuse the fields of a newer server.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, cast

import urllib3
from kubernetes import client
from kubernetes import config as kube_config
from kubernetes.watch import watch
from oslo_config import cfg

from cyborg.common import errors
from cyborg.peers import answers

_PAGE = 500
#: Seconds after which a watch that the server should have ended is given up.
_SPARE = 5
_LONGEST_MANAGER = 128
_ONE = {"metadata": {"name": str}}
#: Of an object, of a list, or of what says that something is deleted.
_SHAPE = (_ONE, {"metadata": dict, "items": [_ONE]}, {"kind": str})

_Document = dict[str, Any]


class Unanswered(errors.CyborgError):
    """Kubernetes did not do what was asked, or cannot be reached."""


class InvalidDocument(Unanswered):
    """Kubernetes does not permit what a document says in these fields."""

    def __init__(self, message: str, fields: Sequence[str]) -> None:
        super().__init__(message)
        self.fields = fields


class Cluster:
    """The API server, as the pod's service account or ``[kube] kubeconfig`` reaches it."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        """:raises errors.Misconfigured: it is not said how to reach it"""
        settings = client.Configuration()
        try:
            if conf.kube.kubeconfig:
                kube_config.load_kube_config(
                    conf.kube.kubeconfig, client_configuration=settings, persist_config=False
                )
            else:
                kube_config.load_incluster_config(client_configuration=settings)
        except (kube_config.ConfigException, OSError) as exc:
            raise errors.Misconfigured(
                f"It is not known how to reach Kubernetes, see [kube] kubeconfig: {exc}"
            ) from exc
        api = client.ApiClient(settings)
        self._resources = client.ResourceV1Api(api)
        self._core = client.CoreV1Api(api)
        self._by_node = f"spec.nodeName={node_name(conf)},spec.driver={conf.kube.driver_name}"
        self._node = node_name(conf)
        self._stream: Any = None
        self._list_claims = self._resources.list_resource_claim_for_all_namespaces
        self._manager = f"{conf.kube.driver_name}/{self._node}"[:_LONGEST_MANAGER]

    def resource_claim(self, namespace: str, name: str, until: float) -> _Document | None:
        """The ResourceClaim of that name; None if there is none.

        The answer is awaited until then, by the monotonic clock.

        :raises Unanswered: that is not known
        """
        try:
            return self._call(
                self._resources.read_namespaced_resource_claim,
                name,
                namespace,
                seconds=until - time.monotonic(),
            )
        except _Gone:
            return None

    def resource_claims(self) -> Iterator[_Document]:
        """Every ResourceClaim.

        :raises Unanswered: they cannot be read
        """
        for kind, claim in self.claim_events(0):
            if kind == "LISTING_ENDED":
                return
            yield claim

    def claim_events(self, seconds: int) -> Iterator[tuple[str, _Document]]:
        """Every ResourceClaim as LISTED, then LISTING_ENDED, and changes for so many seconds.

        A change is MODIFIED, ADDED or DELETED, with the claim.

        :raises Unanswered: they cannot be read
        """
        more: str | None = None
        while more != "":
            further: dict[str, Any] = {} if more is None else {"_continue": more}
            page = self._call(self._list_claims, limit=_PAGE, **further)
            yield from (("LISTED", each) for each in page["items"])
            more = page["metadata"].get("continue") or ""
        yield "LISTING_ENDED", {}
        version = page["metadata"].get("resourceVersion")
        yield from self._changes(str(version), seconds)

    def _changes(self, version: str, seconds: int) -> Iterator[tuple[str, _Document]]:
        try:
            with answers.within(seconds + _SPARE, streams=True) as left:
                stream = self._list_claims(
                    watch=True,
                    resource_version=version,
                    timeout_seconds=seconds,
                    _preload_content=False,
                    _request_timeout=left,
                )
            self._stream = stream
            for line in watch.iter_resp_lines(stream):
                event = json.loads(line)
                if not answers.fits(event, {"type": str, "object": _ONE}):
                    # An ERROR, as when the version is too old: all are listed again.
                    return
                yield event["type"], event["object"]
        except client.ApiException as exc:
            raise Unanswered(f"Kubernetes answers {exc.status}: {_message(exc)}") from exc
        except (urllib3.exceptions.HTTPError, OSError, answers.Unusable) as exc:
            raise Unanswered(f"Kubernetes cannot be reached: {exc}") from exc
        except (ValueError, RecursionError) as exc:
            raise Unanswered(f"The answer of Kubernetes is not JSON: {exc}") from exc

    def stop(self) -> None:
        """End a watch that goes on in another thread."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.shutdown()

    def apply_claim_status(self, document: _Document) -> None:
        """Say of this driver's devices of a ResourceClaim what the document says, and no more.

        :raises Unanswered: it is not said
        """
        meta = document["metadata"]
        # A wrong document is refused here, and not by the server.
        client.ResourceV1ResourceClaim.from_dict({**document, "spec": {}})
        self._call(
            self._resources.patch_namespaced_resource_claim_status,
            meta["name"],
            meta["namespace"],
            document,
            field_manager=self._manager,
            force=True,
            _content_type="application/apply-patch+yaml",
        )

    def slices(self) -> list[_Document]:
        """The ResourceSlices of this driver on this node.

        :raises Unanswered: they cannot be read
        """
        found = self._call(self._resources.list_resource_slice, field_selector=self._by_node)
        items: list[_Document] = found["items"]
        return items

    def put_slice(self, document: _Document, *, only_try: bool = False) -> _Document:
        """Create a ResourceSlice, or replace one that has not changed since; as it is stored.

        One that is only tried is not written.

        :raises Unanswered: it is not written, or could not be
        """
        name, version = (document["metadata"].get(key) for key in ("name", "resourceVersion"))
        # A wrong document is refused here, and not by the server.
        wanted = client.V1ResourceSlice.from_dict(document)
        options: dict[str, Any] = {"dry_run": "All"} if only_try else {}
        if version is None:
            return self._call(self._resources.create_resource_slice, wanted, **options)
        return self._call(self._resources.replace_resource_slice, name, wanted, **options)

    def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice, if it is there.

        :raises Unanswered: it is not deleted
        """
        with contextlib.suppress(_Gone):
            self._call(self._resources.delete_resource_slice, name)

    def node_uid(self) -> str:
        """The uid of this node.

        :raises Unanswered: there is no such node, or it is not known
        """
        try:
            return str(self._call(self._core.read_node, self._node)["metadata"]["uid"])
        except _Gone as exc:
            raise Unanswered(f"Kubernetes has no node {self._node}") from exc

    @staticmethod
    def _call(
        function: Any, *arguments: Any, seconds: float | None = None, **options: Any
    ) -> _Document:
        try:
            with answers.within(seconds) as left:
                options |= {"_preload_content": False, "_request_timeout": left}
                document: Any = json.loads(function(*arguments, **options).data)
        except client.ApiException as exc:
            if exc.status == HTTPStatus.NOT_FOUND:
                raise _Gone("Kubernetes has no such object") from exc
            said = f"Kubernetes answers {exc.status}: {_message(exc)}"
            if exc.status == HTTPStatus.UNPROCESSABLE_ENTITY:
                raise InvalidDocument(said, _fields(exc)) from exc
            raise Unanswered(said) from exc
        except (urllib3.exceptions.HTTPError, OSError, answers.Unusable) as exc:
            raise Unanswered(f"Kubernetes cannot be reached: {exc}") from exc
        except (ValueError, RecursionError) as exc:
            raise Unanswered(f"The answer of Kubernetes is not JSON: {exc}") from exc
        if not answers.fits(document, _SHAPE):
            raise Unanswered("The answer of Kubernetes is not an object of its API.")
        return cast(_Document, document)


class _Gone(Unanswered):
    """There is no such object."""


def node_name(conf: cfg.ConfigOpts) -> str:
    """The name of this machine's node."""
    return str(conf.kube.node_name or conf.host)


def _message(exc: client.ApiException) -> str:
    try:
        return str(json.loads(exc.body or "")["message"])
    except answers.ODD:
        return str(exc.reason)


def _fields(exc: client.ApiException) -> list[str]:
    try:
        return [str(cause["field"]) for cause in json.loads(exc.body or "")["details"]["causes"]]
    except answers.ODD:
        return []
