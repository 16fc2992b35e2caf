# SPDX-License-Identifier: Apache-2.0
"""The messages between kubelet and driver, as the kubelet publishes them.

``protos`` has their names and numbers, which are facts of Kubernetes' own files, and what
``python -m grpc_tools.protoc`` makes of them: a test refuses a set that is not up to date.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_SET = resources.files("cyborg.kube").joinpath("protos/set.binpb").read_bytes()
_FILES = descriptor_pb2.FileDescriptorSet.FromString(_SET).file
# A pool of its own: the package "v1" may be anybody's.
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.Add(_file)
_PACKAGES = {file.name: file.package for file in _FILES}


def _classes(file: str) -> Mapping[str, Any]:
    found = _POOL.FindFileByName(file).message_types_by_name
    return {name: message_factory.GetMessageClass(each) for name, each in found.items()}


#: The classes of messages, by their names.
DRA = _classes("dra.proto")
HEALTH = _classes("health.proto")
REGISTRATION = _classes("registration.proto")

#: What HealthStatus may be.
UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2

#: The gRPC services.
DRA_SERVICE = f"{_PACKAGES['dra.proto']}.DRAPlugin"
REGISTRATION_SERVICE = f"{_PACKAGES['registration.proto']}.Registration"
#: The messages of all three are alike; older kubelets know no "v1".
HEALTH_SERVICES = (
    "v1.DRAResourceHealth",
    "v1beta1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
#: What a plugin says that it serves.
SUPPORTED = ("v1.DRAPlugin", *HEALTH_SERVICES)
PLUGIN_TYPE = "DRAPlugin"
