# SPDX-License-Identifier: Apache-2.0
"""The unix sockets on which the kubelet finds the driver, and calls it by gRPC."""

from __future__ import annotations

import contextlib
import logging
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, TypeVar

import grpc
from oslo_config import cfg

from cyborg.common import errors
from cyborg.kube import messages
from cyborg.kube.cluster import node_name
from cyborg.kube.health import DeviceHealth
from cyborg.kube.resource_claims import Call, Given, ResourceClaims

LOG = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Calls that are answered at the same time. Each stream of health takes one.
_CALLS = 16
#: Claims of one call that are served at the same time.
_CLAIMS = 8
#: Seconds before the kubelet gives up a call, in which it can still be told why it failed.
_SPARE = 2.0
#: Seconds that calls are given to end when the driver stops.
_GRACE = 10.0
#: The longest path of a socket that the kernel takes.
_LONGEST_PATH = 107
#: The file, beside the plugin's socket, whose time is that of the last pass.
ALIVE = "alive"


class Endpoints:
    """Both sockets: the one that the kubelet looks for, and the one that it then calls."""

    def __init__(self, conf: cfg.ConfigOpts, claims: ResourceClaims, health: DeviceHealth) -> None:
        self._conf = conf
        self._driver = conf.kube.driver_name
        self._pool = node_name(conf)
        self._claims = claims
        self._health = health
        self._plugin = pathlib.Path(conf.kube.plugins_dir, self._driver, "dra.sock")
        self._registry = pathlib.Path(conf.kube.registry_dir, f"{self._driver}-reg.sock")
        for path in (self._plugin, self._registry):
            if len(str(path)) > _LONGEST_PATH:
                raise errors.Misconfigured(f"The path of a socket is too long: {path}")
        self._servers: list[Any] = []
        #: The inode of each socket as it was made.
        self._made: dict[pathlib.Path, int] = {}

    def start(self) -> None:
        """Serve claims first, so that who has found the driver can call it."""
        self._plugin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        dra = {
            "NodePrepareResources": _unary(
                self._prepare, messages.DRA["NodePrepareResourcesRequest"]
            ),
            "NodeUnprepareResources": _unary(
                self._unprepare, messages.DRA["NodeUnprepareResourcesRequest"]
            ),
        }
        health = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=messages.HEALTH["NodeWatchResourcesRequest"].FromString,
                response_serializer=_bytes,
            )
        }
        self._serve(
            self._plugin,
            {messages.DRA_SERVICE: dra, **dict.fromkeys(messages.HEALTH_SERVICES, health)},
        )
        registration = {
            "GetInfo": _unary(self._info, messages.REGISTRATION["InfoRequest"]),
            "NotifyRegistrationStatus": _unary(
                self._note_status, messages.REGISTRATION["RegistrationStatus"]
            ),
        }
        self._serve(self._registry, {messages.REGISTRATION_SERVICE: registration})

    def stop(self) -> None:
        """Let the kubelet see that the driver is gone, and end the calls."""
        self._remove(self._registry)
        self._health.stop()
        self._end(_GRACE)
        self._remove(self._plugin)

    def check(self) -> None:
        """Serve anew if a socket is gone, and show the kubelet's liveness probe that passes go on.

        A driver whose pod was deleted by force removes both by their paths when it ends at last.
        """
        if not self._servers:
            return
        with contextlib.suppress(OSError):
            self._plugin.with_name(ALIVE).touch()
        if all(each.is_socket() for each in (self._plugin, self._registry)):
            return
        LOG.warning("A socket of the driver is gone; it is made again")
        self._end(0.0)
        self.start()

    def _end(self, grace: float) -> None:
        for stopping in [server.stop(grace) for server in reversed(self._servers)]:
            stopping.wait(_GRACE)
        self._servers.clear()

    def _remove(self, path: pathlib.Path) -> None:
        """Remove a socket, unless a newer driver has made another one there."""
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == self._made.get(path):
                path.unlink()

    def _serve(self, path: pathlib.Path, services: Mapping[str, Mapping[str, Any]]) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(_CALLS, thread_name_prefix=path.stem))
        for name, methods in services.items():
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(name, methods),)
            )
        # What a process has left that was killed.
        path.unlink(missing_ok=True)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as exc:
            raise errors.Misconfigured(f"There can be no socket {path}: {exc}") from exc
        with contextlib.suppress(FileNotFoundError):
            path.chmod(0o600)
            self._made[path] = path.stat().st_ino
        server.start()
        self._servers.append(server)

    def _info(self, _request: Any, _context: Any) -> Any:
        return messages.REGISTRATION["PluginInfo"](
            type=messages.PLUGIN_TYPE,
            name=self._driver,
            endpoint=str(self._plugin),
            supported_versions=messages.SUPPORTED,
        )

    def _note_status(self, request: Any, _context: Any) -> Any:
        if request.plugin_registered:
            LOG.info("The kubelet has registered %s", self._driver)
        else:
            LOG.error("The kubelet has not registered %s: %r", self._driver, request.error)
        return messages.REGISTRATION["RegistrationStatusResponse"]()

    def _prepare(self, request: Any, context: Any) -> Any:
        answer = messages.DRA["NodePrepareResourcesResponse"]()
        call = self._call(context)

        def prepare(claim: Any) -> list[Given]:
            return self._claims.prepare(claim.namespace, claim.name, claim.uid, call)

        for claim, error, given in _of_each(prepare, "prepared", request.claims):
            one = answer.claims[claim.uid]
            one.error = error
            for each in given or ():
                one.devices.add(
                    request_names=[each.request],
                    pool_name=self._pool,
                    device_name=each.device,
                    cdi_device_ids=each.cdi_devices,
                )
        return answer

    def _unprepare(self, request: Any, context: Any) -> Any:
        answer = messages.DRA["NodeUnprepareResourcesResponse"]()
        call = self._call(context)

        def unprepare(claim: Any) -> None:
            self._claims.unprepare(claim.uid, call)

        for claim, error, _ in _of_each(unprepare, "unprepared", request.claims):
            answer.claims[claim.uid].error = error
        return answer

    def _call(self, context: Any) -> Call:
        seconds = float(self._conf.kube.prepare_timeout)
        left = context.time_remaining()
        if left is not None:
            seconds = min(seconds, left - _SPARE)
        return Call(until=time.monotonic() + seconds, is_heard=context.is_active)

    def _watch(self, _request: Any, context: Any) -> Iterator[Any]:
        yield from self._health.watch(context.is_active)


def _of_each(
    function: Callable[[Any], _Result], done: str, claims: Sequence[Any]
) -> Iterator[tuple[Any, str, _Result | None]]:
    """The claims of a call, with why each is not done, if so, and what is made of it.

    They share the time of the call.
    """

    def attempt(claim: Any) -> tuple[Any, str, _Result | None]:
        try:
            return claim, "", function(claim)
        except Exception as exc:  # noqa: BLE001 - logged there; it must not stop the others
            return claim, _why(exc, done, claim), None

    if claims:
        with futures.ThreadPoolExecutor(min(_CLAIMS, len(claims))) as pool:
            yield from pool.map(attempt, claims)


def _unary(method: Callable[[Any, Any], Any], request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=_bytes
    )


def _bytes(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized


def _why(exc: Exception, what: str, claim: Any) -> str:
    """The reason why one claim of a call is not served; the others are."""
    if isinstance(exc, errors.CyborgError):
        LOG.warning("Claim %s/%s is not %s: %s", claim.namespace, claim.name, what, exc)
        return exc.message
    LOG.error("Claim %s/%s is not %s", claim.namespace, claim.name, what, exc_info=exc)
    return f"The driver failed, see its log: {type(exc).__name__}"
