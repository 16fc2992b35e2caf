# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the kubelet: finds plugins by their sockets, and calls drivers as it does.

Its messages are compiled from the files in ``cyborg/kube/protos``, not those of the driver.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

FILES = pathlib.Path(__file__).parents[1] / "kube" / "protos"
#: Seconds that a call may take.
_TIMEOUT = 45

#: Namespace, name and uid of a claim.
Claim = tuple[str, str, str]


@functools.cache
def pool() -> Any:
    """What the files describe."""
    found = descriptor_pool.DescriptorPool()
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "set")
        paths = [str(path) for path in sorted(FILES.glob("*.proto"))]
        assert protoc.main(["", f"-I{FILES}", f"--descriptor_set_out={out}", *paths]) == 0
        described = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    for file in described.file:
        found.AddSerializedFile(file.SerializeToString())
    return found


def _method(service: str, name: str) -> Any:
    return pool().FindServiceByName(service).methods_by_name[name]


class Plugin:
    """A plugin that the kubelet has found."""

    def __init__(self, info: Any) -> None:
        self.info = info
        self._channel = grpc.insecure_channel(f"unix:{info.endpoint}")
        self.close = self._channel.close

    def prepare(self, *claims: Claim) -> dict[str, Any]:
        """What the driver says of each claim, by its uid."""
        return self._claims("NodePrepareResources", claims)

    def unprepare(self, *claims: Claim) -> dict[str, Any]:
        """The same for claims that no pod uses any more."""
        return self._claims("NodeUnprepareResources", claims)

    def health(self, version: str = "v1") -> Iterator[Mapping[str, Any]]:
        """The health of every device, by its name, each time the driver says it."""
        method = _method("v1.DRAResourceHealth", "NodeWatchResources")
        answer = message_factory.GetMessageClass(method.output_type)
        stream = self._channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        for said in stream(message_factory.GetMessageClass(method.input_type)()):
            yield {each.device.device_name: each for each in said.devices}

    def _claims(self, name: str, claims: Sequence[Claim]) -> dict[str, Any]:
        method = _method("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", name)
        request = message_factory.GetMessageClass(method.input_type)()
        for namespace, claim, uid in claims:
            request.claims.add(namespace=namespace, name=claim, uid=uid)
        answer = _call(self._channel, method, request)
        assert set(answer.claims) == {uid for _, _, uid in claims}
        return dict(answer.claims)


def register(folder: pathlib.Path) -> Plugin:
    """Find the plugin whose socket is in the folder, and say to it that it is registered."""
    (socket,) = folder.glob("*.sock")
    service = "pluginregistration.Registration"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        get = _method(service, "GetInfo")
        info = _call(channel, get, message_factory.GetMessageClass(get.input_type)())
        assert info.type == "DRAPlugin"
        assert "v1.DRAPlugin" in info.supported_versions
        notify = _method(service, "NotifyRegistrationStatus")
        status = message_factory.GetMessageClass(notify.input_type)
        _call(channel, notify, status(plugin_registered=True))
    return Plugin(info)


def _call(channel: Any, method: Any, request: Any) -> Any:
    answer = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return call(request, timeout=_TIMEOUT, wait_for_ready=True)
