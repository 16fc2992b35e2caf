# SPDX-License-Identifier: Apache-2.0
"""The import from beginning to end. Repeated it changes nothing, and killed it is run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg
from oslo_utils import uuidutils

from cyborg import errors
from cyborg.ironic import api, facts, store
from cyborg.ironic.devices import Finder
from cyborg.ironic.store import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What to import: all nodes, or those of these UUIDs or names."""

    nodes: Sequence[str] = ()
    dry_run: bool = False
    #: Believe an Ironic that does not know most of the nodes any more.
    remove_gone: bool = False


def import_all(conf: cfg.ConfigOpts, wish: Wish) -> Iterator[Outcome]:
    """Import every node that Ironic has, and forget those that it has no more.

    :raises Misconfigured: Ironic cannot be used, or does not know most of the nodes any more
    """
    finder = Finder(conf)
    known = store.known_hosts()
    listed = list(api.nodes(conf))
    gone = {uuid: name for uuid, name in known.items() if uuid not in _uuids(listed)}
    if not wish.remove_gone:
        _refuse_losses(conf, len(listed), len(gone), len(known))
    nodes, outcomes = _readable(listed)
    yield from outcomes
    for node in nodes:
        yield _import(conf, finder, node, dry_run=wish.dry_run)
    for uuid, name in sorted(gone.items()):
        yield _forget(uuid, name, dry_run=wish.dry_run)


def import_some(conf: cfg.ConfigOpts, wish: Wish) -> Iterator[Outcome]:
    """Import the nodes of the wish, and forget those of them that Ironic has no more.

    :raises Misconfigured: Ironic cannot be used, or knows a node neither now nor before
    """
    finder = Finder(conf)
    known = store.known_hosts()
    for ident in wish.nodes:
        try:
            found = api.node(conf, ident)
            node = None if found is None else facts.node_of(found)
        except api.Unreadable as exc:
            yield Outcome(node=ident, host=ident, failure=str(exc))
            continue
        if node is not None:
            yield _import(conf, finder, node, dry_run=wish.dry_run)
            continue
        gone = {uuid: name for uuid, name in known.items() if ident in {uuid, name}}
        if not gone:
            raise errors.Misconfigured(f"Ironic knows no node {ident}.")
        for uuid, name in gone.items():
            yield _forget(uuid, name, dry_run=wish.dry_run)


def import_document(
    conf: cfg.ConfigOpts, document: Mapping[str, Any], uuid: str, name: str | None, *, dry_run: bool
) -> Outcome:
    """Import what was saved of a node's inventory, without asking Ironic.

    :raises Misconfigured: the UUID or the name is none
    """
    if not uuidutils.is_uuid_like(uuid):
        raise errors.Misconfigured(f"--node must be the UUID of the node, not {uuid}.")
    try:
        node = facts.node_of({"uuid": uuid, "name": name})
    except api.Unreadable as exc:
        raise errors.Misconfigured(str(exc)) from exc
    found = Finder(conf).find(facts.inventory_of(document), ())
    return store.store(node, found, dry_run=dry_run)


def _import(
    conf: cfg.ConfigOpts, finder: Finder, node: facts.Node, *, dry_run: bool
) -> Outcome:
    try:
        document = api.inventory(conf, node.uuid)
    except api.Unreadable as exc:
        return Outcome(node=node.uuid, host=node.host, failure=str(exc))
    found = finder.find(facts.inventory_of(document), node.accelerators)
    return store.store(node, found, dry_run=dry_run)


def _forget(uuid: str, name: str, *, dry_run: bool) -> Outcome:
    notes = ("Ironic has no such node any more",)
    return Outcome(node=uuid, host=name, notes=notes, gone=store.forget([uuid], dry_run=dry_run))


def _uuids(listed: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(each.get("uuid")).lower() for each in listed}


def _readable(
    listed: Sequence[Mapping[str, Any]],
) -> tuple[list[facts.Node], list[Outcome]]:
    """The nodes that can be imported, and those that cannot."""
    nodes, failures = list[facts.Node](), list[Outcome]()
    for each in listed:
        try:
            nodes.append(facts.node_of(each))
        except api.Unreadable as exc:
            uuid = str(each.get("uuid"))
            failures.append(Outcome(node=uuid, host=uuid, failure=str(exc)))
    return nodes, failures


def _refuse_losses(conf: cfg.ConfigOpts, listed: int, gone: int, known: int) -> None:
    """Return unless so many nodes are gone that the wrong Ironic may have been asked.

    :raises Misconfigured: they are
    """
    share = conf.conductor.max_gone_share
    if gone and (not listed or (gone > 1 and gone > share * known)):
        raise errors.Misconfigured(
            f"Ironic shows {gone} of {known} nodes no more that it has shown before. Is the user "
            "of [ironic] one that sees all of them? If they are gone, use --remove-gone. Nothing "
            "was imported."
        )
