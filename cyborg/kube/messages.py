# SPDX-License-Identifier: Apache-2.0
"""The messages between kubelet and driver, as the kubelet publishes them.

The names and numbers are those of Kubernetes' own files, all in ``k8s.io/kubelet/pkg/apis``:
``dra/v1/api.proto``, ``dra-health/v1/api.proto`` and ``pluginregistration/v1/api.proto``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int64": _FIELD.TYPE_INT64,
}


@dataclass(frozen=True, slots=True)
class _Is:
    """A field: its number, and its type, which may be a message or an enum of the same file."""

    number: int
    type: str = "string"
    repeated: bool = False
    #: Whether it is a map from strings to its type.
    map: bool = False


@dataclass(frozen=True, slots=True)
class _File:
    package: str
    messages: Mapping[str, Mapping[str, _Is]]
    enums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


_DRA = _File(
    "k8s.io.kubelet.pkg.apis.dra.v1",
    {
        "NodePrepareResourcesRequest": {"claims": _Is(1, "Claim", repeated=True)},
        "NodePrepareResourcesResponse": {
            "claims": _Is(1, "NodePrepareResourceResponse", map=True)
        },
        "NodePrepareResourceResponse": {
            "devices": _Is(1, "Device", repeated=True),
            "error": _Is(2),
        },
        "Device": {
            "request_names": _Is(1, repeated=True),
            "pool_name": _Is(2),
            "device_name": _Is(3),
            "cdi_device_ids": _Is(4, repeated=True),
        },
        "NodeUnprepareResourcesRequest": {"claims": _Is(1, "Claim", repeated=True)},
        "NodeUnprepareResourcesResponse": {
            "claims": _Is(1, "NodeUnprepareResourceResponse", map=True)
        },
        "NodeUnprepareResourceResponse": {"error": _Is(1)},
        "Claim": {"namespace": _Is(1), "uid": _Is(2), "name": _Is(3)},
    },
)
_HEALTH = _File(
    "v1",
    {
        "NodeWatchResourcesRequest": {},
        "NodeWatchResourcesResponse": {"devices": _Is(1, "DeviceHealth", repeated=True)},
        "DeviceIdentifier": {"pool_name": _Is(1), "device_name": _Is(2)},
        "DeviceHealth": {
            "device": _Is(1, "DeviceIdentifier"),
            "health": _Is(2, "HealthStatus"),
            "last_updated_time": _Is(3, "int64"),
            "health_check_timeout_seconds": _Is(4, "int64"),
            "message": _Is(5),
        },
    },
    {"HealthStatus": {"UNKNOWN": 0, "HEALTHY": 1, "UNHEALTHY": 2}},
)
_REGISTRATION = _File(
    "pluginregistration",
    {
        "PluginInfo": {
            "type": _Is(1),
            "name": _Is(2),
            "endpoint": _Is(3),
            "supported_versions": _Is(4, repeated=True),
        },
        "RegistrationStatus": {"plugin_registered": _Is(1, "bool"), "error": _Is(2)},
        "RegistrationStatusResponse": {},
        "InfoRequest": {},
    },
)

#: What HealthStatus may be.
UNKNOWN, HEALTHY, UNHEALTHY = 0, 1, 2


def _described(file: _File) -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto(
        name=f"{file.package}.proto", package=file.package, syntax="proto3"
    )
    for name, values in file.enums.items():
        enum = found.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in file.messages.items():
        message = found.message_type.add(name=name)
        for field_name, fact in fields.items():
            if fact.map:
                _add_entry(file, message, field_name, fact)
            else:
                _add(file, message, field_name, fact)
    return found


def _add(
    file: _File, message: descriptor_pb2.DescriptorProto, name: str, fact: _Is
) -> descriptor_pb2.FieldDescriptorProto:
    label = _FIELD.LABEL_REPEATED if fact.repeated else _FIELD.LABEL_OPTIONAL
    added = message.field.add(name=name, number=fact.number, label=label)
    if fact.type in _TYPES:
        added.type = _TYPES[fact.type]
    else:
        added.type = _FIELD.TYPE_ENUM if fact.type in file.enums else _FIELD.TYPE_MESSAGE
        added.type_name = f".{file.package}.{fact.type}"
    return added


def _add_entry(
    file: _File, message: descriptor_pb2.DescriptorProto, name: str, fact: _Is
) -> None:
    """A map is a list of messages with key and value, which is marked as one."""
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    _add(file, entry, "key", _Is(1))
    _add(file, entry, "value", _Is(2, fact.type))
    added = _add(file, message, name, _Is(fact.number, fact.type, repeated=True))
    added.type_name = f".{file.package}.{message.name}.{entry.name}"


def _classes(file: _File) -> Mapping[str, Any]:
    # A pool of its own: the package "v1" may be anybody's.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_described(file).SerializeToString())
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{name}")
        )
        for name in file.messages
    }


#: The classes of messages, by their names.
DRA = _classes(_DRA)
HEALTH = _classes(_HEALTH)
REGISTRATION = _classes(_REGISTRATION)

#: The gRPC services.
DRA_SERVICE = f"{_DRA.package}.DRAPlugin"
REGISTRATION_SERVICE = f"{_REGISTRATION.package}.Registration"
#: The messages of all three are alike; older kubelets know no "v1".
HEALTH_SERVICES = (
    "v1.DRAResourceHealth",
    "v1beta1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
#: What a plugin says that it serves.
SUPPORTED = ("v1.DRAPlugin", *HEALTH_SERVICES)
PLUGIN_TYPE = "DRAPlugin"
