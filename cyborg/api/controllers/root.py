# SPDX-License-Identifier: Apache-2.0
"""Version documents, and the routes from a path to the controller of its resource."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pecan
from webob import exc

from cyborg.api import declare, openapi, request_metrics, versions
from cyborg.api.controllers import (
    accelerator_requests,
    allocations,
    attach_handles,
    attributes,
    deployables,
    device_profiles,
    devices,
    function_pools,
    history,
    hosts,
    operations,
    resource,
    services,
    summary,
    usages,
)
from cyborg.api.request import Request
from cyborg.api.types import api as types

_DESCRIPTION = (
    "Cyborg is the OpenStack project for lifecycle management of hardware accelerators, such as "
    "GPUs, FPGAs, AI chips, security accelerators, etc."
)


#: The controller of each collection by its name in paths.
RESOURCES: Mapping[str, resource.Resource] = {
    served.collection: served()
    for served in (
        accelerator_requests.AcceleratorRequests,
        allocations.Allocations,
        attach_handles.AttachHandles,
        attributes.Attributes,
        deployables.Deployables,
        device_profiles.DeviceProfiles,
        devices.Devices,
        function_pools.FunctionMisses,
        function_pools.FunctionPools,
        history.History,
        hosts.Hosts,
        operations.Operations,
        services.Services,
        summary.Summary,
        usages.Usages,
    )
}


class RootController:
    """All paths: collections are served below ``/v2`` and without that prefix."""

    def __init__(self, *, with_tokens: bool) -> None:
        self._with_tokens = with_tokens

    @pecan.expose()
    def _route(self, path: list[str], request: Request) -> tuple[declare.Declared, list[str]]:
        handler, arguments = self._find(path, request)
        request_metrics.name_route(request.environ, _templates()[handler.__qualname__])
        return handler, arguments

    def _find(self, path: list[str], request: Request) -> tuple[declare.Declared, list[str]]:
        segments = [segment for segment in path if segment]
        if not segments:
            return resource.choose(request, {"GET": self.versions}), []
        if segments[0] == "v2" or segments == ["v2.json"]:
            if segments[1:] == ["openapi.json"]:
                # Who does not say which one wants to know all there is.
                request.headers.setdefault(versions.HEADER, "latest")
            request.negotiate()
            segments = segments[1:]
            if not segments:
                return resource.choose(request, {"GET": self.version}), []
            if segments == ["openapi.json"]:
                return resource.choose(request, {"GET": self.openapi}), []
        elif segments[0] in RESOURCES:
            request.negotiate()
        collection = RESOURCES.get(segments[0])
        if collection is None:
            raise exc.HTTPNotFound
        return collection.find_handler(request, segments[1:])

    @declare.operation(None, answer=types.Versions)
    def versions(self, request: Request) -> dict[str, Any]:
        """Show every version of the API."""
        version = {
            "id": "v2",
            "status": "CURRENT",
            "max_version": str(versions.MAX),
            "min_version": str(versions.MIN),
            "links": [{"href": f"{request.base_url}/v2", "rel": "self"}],
        }
        return {
            "name": "OpenStack Cyborg API",
            "description": _DESCRIPTION,
            "versions": [version],
            "default_version": version,
        }

    @declare.operation(None, answer=types.Version)
    def version(self, request: Request) -> dict[str, Any]:
        """Show version 2 of the API."""
        return {
            "id": "v2.0",
            "links": [{"href": f"{request.base_url}/v2/", "rel": "self"}],
            "max_version": str(versions.MAX),
            "min_version": str(versions.MIN),
            "status": "CURRENT",
        }

    @declare.operation(None, answer=types.OPENAPI)
    def openapi(self, request: Request) -> dict[str, Any]:
        """Describe the API at this microversion."""
        described = described_at(request.version, with_tokens=self._with_tokens)
        return {**described, "servers": [{"url": request.base_url}]}


@functools.cache
def described_at(version: versions.Version, *, with_tokens: bool) -> Mapping[str, Any]:
    """The document of a microversion but for where the API is: making it takes long."""
    return openapi.document(declared(), version, with_tokens=with_tokens)


def declared() -> Iterator[tuple[str, str, declare.Declared]]:
    """The HTTP method, the path and the handler of every operation there is."""
    yield "GET", "/", RootController.versions
    yield "GET", "/v2", RootController.version
    yield "GET", "/v2/openapi.json", RootController.openapi
    for name, collection in RESOURCES.items():
        for method, path, handler in collection.declared():
            yield method, f"/v2/{name}{path}", handler


@functools.cache
def _templates() -> dict[str, str]:
    """The path of each operation with placeholders for names, by its handler."""
    return {handler.__qualname__: path for _, path, handler in declared()}
