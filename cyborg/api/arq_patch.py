# SPDX-License-Identifier: Apache-2.0
"""The body of ``PATCH /v2/accelerator_requests``: which ARQs to bind where, and which to unbind.

It maps the uuid of each ARQ to a list of operations in the form of a JSON patch. Either all add,
which binds, or all remove, which unbinds. Its type is in
:mod:`cyborg.api.types.accelerator_requests`; this module checks what a schema cannot say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cyborg.api import arguments, versions
from cyborg.arqs.bind_requests import BindTarget
from cyborg.common import errors

#: What messages about the body begin with.
REFUSED = "Couldn't apply patch. Reason: "

_REQUIRED = ("hostname", "device_rp_uuid", "instance_uuid")
_UUIDS = frozenset({"device_rp_uuid", "instance_uuid"})
_PROJECT = "project_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes that a PATCH asks for; one of the two is empty."""

    binds: dict[str, BindTarget]
    unbinds: frozenset[str]
    #: Whether it names a project, which only an administrator may do.
    names_project: bool


def parse(data: dict[str, list[dict[str, Any]]], version: versions.Version) -> Changes:
    """The changes that the body, already validated by its schema, asks for.

    :raises Invalid: they contradict each other, or a target is not complete
    :raises NotAcceptable: it names a project at a microversion before that
    :raises NotFound: a key is not a uuid
    """
    operations = {arq_uuid(key): _operations(key, value) for key, value in data.items()}
    if len(operations) < len(data):
        raise _refusal("an ARQ is named more than once")
    names_project = any(_PROJECT in fields for _, fields in operations.values())
    if names_project:
        versions.require(version, versions.ARQ_PROJECT)
    if len({op for op, _ in operations.values()}) > 1:
        raise _refusal("bind and unbind ARQs in different requests: every op must be the same")
    return Changes(
        binds={uuid: _target(fields) for uuid, (op, fields) in operations.items() if op == "add"},
        unbinds=frozenset(uuid for uuid, (op, _) in operations.items() if op == "remove"),
        names_project=names_project,
    )


def arq_uuid(text: str) -> str:
    """The uuid of an ARQ.

    :raises NotFound: the text is not a uuid, so no ARQ has it
    """
    uuid = arguments.find_uuid(text)
    if uuid is None:
        raise errors.NotFound.of("ExtArq", uuid=text[: arguments.TEXT_MAX])
    return uuid


def _operations(key: str, operations: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The common op of one ARQ's operations, and their values by field."""
    fields: dict[str, Any] = {}
    for operation in operations:
        field = operation["path"].removeprefix("/")
        if field in fields:
            raise _refusal(f"path /{field} of {key} is given more than once")
        fields[field] = operation.get("value")
    ops = {operation["op"] for operation in operations}
    if len(ops) != 1:
        raise _refusal("Every op must be add or remove")
    return ops.pop(), fields


def _target(fields: dict[str, Any]) -> BindTarget:
    absent = [field for field in _REQUIRED if fields.get(field) is None]
    if absent:
        raise _refusal(f"Fields absent in patch {','.join(absent)}")
    values = {field: _value(field, value) for field, value in fields.items()}
    return BindTarget(consumer_uuid=values.pop("instance_uuid"), **values)


def _value(field: str, value: Any) -> Any:
    return arguments.stored_uuid(value) if field in _UUIDS else value


def _refusal(reason: str) -> errors.Invalid:
    return errors.Invalid(REFUSED + reason)
