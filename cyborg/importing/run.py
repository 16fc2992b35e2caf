# SPDX-License-Identifier: Apache-2.0
"""The import from beginning to end: everything is read and checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from cyborg import db, liveness
from cyborg.common import errors
from cyborg.db import models, revision, schema
from cyborg.importing import convert, store
from cyborg.importing.source import Source

T = TypeVar("T")

#: Told what is read or written, and how many rows of how many are done.
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Report:
    """The content of the old database, and what becomes of it."""

    #: The release of upstream that made its schema.
    release: str
    #: By kind: how many there are, and how many of them are not here yet.
    kinds: dict[str, tuple[int, int]] = field(default_factory=dict)
    findings: convert.RowFindings = field(default_factory=convert.RowFindings)


def check(source: Source, progress: Progress) -> Report:
    """Read all of it and compare it with what is here. Nothing is written.

    :raises Misconfigured: it cannot be read, or nothing can be imported into this database now
    """
    report = Report(source.check())
    _check_target()
    report.findings.refusals += [
        f"Attach handle {handle} is held by several ARQs: {arqs}. Delete the servers of all of "
        "them but one, with the old Cyborg."
        for handle, arqs in source.handles_held_twice()
    ]
    totals = source.count()
    reader = convert.Converter(report.findings)
    for kind, model, pages, conflicts in _checked(source, reader):
        done = new = 0
        for read, page in pages:
            with db.reader() as session:
                report.findings.refusals += conflicts(session, page)
                kept = [_uuid(each) for each in page if not store.is_only_left(each)]
                new += store.count_new(session, model, kept)
            done += read
            progress(f"Checking {kind}", done, totals[kind])
        report.kinds[kind] = (totals[kind], new)
    return report


def carry_out(source: Source, progress: Progress) -> None:
    """Write what :func:`check` has found nothing against; it may be killed and run again."""
    totals = source.count()
    reader = convert.Converter(convert.RowFindings())
    steps: list[tuple[str, Iterable[tuple[int, Sequence[Any]]], Callable[[Any], None]]] = [
        ("device profiles", _converted(source.profiles(), reader.profile), store.store_profiles),
        ("devices", _converted(source.devices(), reader.device), store.store_devices),
        ("ARQs", _converted(source.arqs(), reader.arq), store.store_arqs),
        ("devices", _converted(source.devices(), reader.device), store.store_providers),
    ]
    for kind, pages, write in steps:
        done = 0
        for read, page in pages:
            write(page)
            done += read
            progress(f"Writing {kind}", done, totals[kind])


def _checked(
    source: Source, reader: convert.Converter
) -> Iterator[tuple[str, type[Any], Iterator[tuple[int, list[Any]]], Callable[..., list[str]]]]:
    profiles = _converted(source.profiles(), reader.profile)
    yield "device profiles", models.DeviceProfile, profiles, store.conflicts_of_profiles
    devices = _converted(source.devices(), reader.device)
    yield "devices", models.Device, devices, store.conflicts_of_devices
    arqs = _converted(source.arqs(), reader.arq)
    yield "ARQs", models.Arq, arqs, store.conflicts_of_arqs


def _converted(
    pages: Iterable[Sequence[Any]], convert_one: Callable[[Any], T | None]
) -> Iterator[tuple[int, list[T]]]:
    """The number of rows of each page, and what becomes of them."""
    for page in pages:
        yield len(page), [found for row in page if (found := convert_one(row)) is not None]


def _uuid(converted: Any) -> str:
    values = converted if isinstance(converted, dict) else converted.values
    return str(values["uuid"])


def _check_target() -> None:
    """Raise Misconfigured if its schema is not this release's, or a conductor runs on it."""
    if revision.version() != schema.head():
        raise errors.Misconfigured(
            "The schema of this database is not this release's; run `cyborg-dbsync upgrade` first."
        )
    conductor = models.Conductor
    since = db.now_ms() - liveness.DOWN_AFTER * 1000
    query = sa.select(conductor.host).where(conductor.last_seen_ms > since).limit(1)
    running = db.read_one(query)
    if running is not None:
        raise errors.Misconfigured(
            f"A conductor runs on host {running}: stop all services of Cyborg, then import."
        )
