# SPDX-License-Identifier: Apache-2.0
"""Ironic's HTTP API: nodes, and what their inspection has found."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from keystoneauth1 import exceptions as ka_exc
from oslo_config import cfg

from cyborg.common import errors
from cyborg.peers import answers, clients

GROUP = "ironic"
#: The first microversion that shows an inventory.
_MICROVERSION = "1.81"
_FIELDS = "uuid,name,properties,extra"


class BadNodeAnswer(errors.CyborgError):
    """Ironic does not answer for one node as its API says."""


def nodes(conf: cfg.ConfigOpts) -> Iterator[Mapping[str, Any]]:
    """Every node that the user of ``[ironic]`` may see.

    :raises Misconfigured: Ironic does not list them
    """
    query = {"fields": _FIELDS}
    more = True
    while more:
        document = _listed(conf, query)
        page = document["nodes"]
        yield from page
        more = bool(page and document.get("next"))
        if more:
            query["marker"] = page[-1]["uuid"]


def node(conf: cfg.ConfigOpts, ident: str) -> Mapping[str, Any] | None:
    """The node of that UUID or name, or None if there is none.

    :raises Misconfigured: Ironic cannot be used
    :raises BadNodeAnswer: its answer is an error
    """
    return _get(conf, f"/nodes/{urllib.parse.quote(ident, safe='')}", {"fields": _FIELDS})


def inventory(conf: cfg.ConfigOpts, uuid: str) -> Mapping[str, Any] | None:
    """The inventory of a node by its last inspection, or None if Ironic has none.

    :raises Misconfigured: Ironic cannot be used
    :raises BadNodeAnswer: its answer is an error
    """
    return _get(conf, f"/nodes/{uuid}/inventory", {})


def _listed(conf: cfg.ConfigOpts, query: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        found = _get(conf, "/nodes", query)
    except BadNodeAnswer as exc:
        raise errors.Misconfigured(str(exc)) from exc
    if found is None or not answers.fits(found, {"nodes": [{"uuid": str}]}):
        raise errors.Misconfigured("[ironic] names a service that without nodes, so not Ironic.")
    return found


def _get(
    conf: cfg.ConfigOpts, path: str, query: Mapping[str, str]
) -> Mapping[str, Any] | None:
    try:
        proxy = clients.proxy(conf, GROUP)
        # Some catalogs name the endpoint with the version, others without it.
        endpoint = proxy.get_endpoint() or ""
        base = "" if endpoint.rstrip("/").endswith("/v1") else "/v1"
        answer = proxy.get(
            base + path, params=query, microversion=_MICROVERSION, raise_exc=True
        )
        found: Mapping[str, Any] = answers.document(answer, dict)
    except ka_exc.NotFound:
        return None
    except ka_exc.HttpError as exc:
        raise BadNodeAnswer(clients.why_not(GROUP, exc)) from exc
    except answers.Unusable as exc:
        raise BadNodeAnswer(f"Ironic cannot be read: {exc}") from exc
    except ka_exc.ClientException as exc:
        raise errors.Misconfigured(clients.why_not(GROUP, exc)) from exc
    return found
