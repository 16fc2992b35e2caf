# SPDX-License-Identifier: Apache-2.0
"""The import from beginning to end. Repeated it changes nothing, and killed it is run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oslo_config import cfg
from oslo_utils import uuidutils

from cyborg.common import errors
from cyborg.ironic import api, facts, store
from cyborg.ironic.devices import Finder, NodeDevices
from cyborg.ironic.store import Imported


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSelection:
    """The nodes to import: all, or those of these UUIDs or names."""

    nodes: Sequence[str] = ()
    dry_run: bool = False
    #: Believe an Ironic that does not know most of the nodes any more.
    remove_gone: bool = False


def import_all(conf: cfg.ConfigOpts, wish: NodeSelection) -> Iterator[Imported]:
    """Import every node that Ironic has, and forget those that it has no more.

    All is read before anything is written.

    :raises Misconfigured: Ironic cannot be used, or most of the nodes would be forgotten
    """
    finder = Finder(conf)
    known = store.known_hosts()
    listed = list(api.nodes(conf))
    gone = {uuid: name for uuid, name in known.items() if uuid not in _uuids(listed)}
    nodes, outcomes = _readable(listed)
    read = [_read(conf, finder, node) for node in nodes]
    empty = {
        each.node.uuid for each in read if each.node.uuid in known and each.has_no_device
    }
    if not wish.remove_gone:
        _refuse_losses(conf, len(listed), len(gone), len(empty), len(known))
    yield from outcomes
    for each in read:
        yield each.store(dry_run=wish.dry_run)
    for uuid, name in sorted(gone.items()):
        yield _forget(uuid, name, dry_run=wish.dry_run)


def import_some(conf: cfg.ConfigOpts, wish: NodeSelection) -> Iterator[Imported]:
    """Import the nodes of the wish, and forget those of them that Ironic has no more.

    :raises Misconfigured: Ironic cannot be used, or knows a node neither now nor before
    """
    finder = Finder(conf)
    known = store.known_hosts()
    for ident in wish.nodes:
        try:
            found = api.node(conf, ident)
            node = None if found is None else facts.node_of(found)
        except api.BadNodeAnswer as exc:
            yield Imported(node=ident, host=ident, failure=str(exc))
            continue
        if node is not None:
            yield _read(conf, finder, node).store(dry_run=wish.dry_run)
            continue
        gone = {uuid: name for uuid, name in known.items() if ident in {uuid, name}}
        if not gone:
            raise errors.Misconfigured(f"Ironic knows no node {ident}.")
        for uuid, name in gone.items():
            yield _forget(uuid, name, dry_run=wish.dry_run)


def import_document(
    conf: cfg.ConfigOpts, document: Mapping[str, Any], uuid: str, name: str | None, *, dry_run: bool
) -> Imported:
    """Import what was saved of a node's inventory, without asking Ironic.

    :raises Misconfigured: the UUID or the name is none
    """
    if not uuidutils.is_uuid_like(uuid):
        raise errors.Misconfigured(f"--node must be the UUID of the node, not {uuid}.")
    try:
        node = facts.node_of({"uuid": uuid, "name": name})
    except api.BadNodeAnswer as exc:
        raise errors.Misconfigured(str(exc)) from exc
    found = Finder(conf).find(facts.inventory_of(document), ())
    return store.store(node, found, dry_run=dry_run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRead:
    """A node with its devices, or with why they cannot be read."""

    node: facts.Node
    found: NodeDevices | None = None
    failure: str | None = None

    @property
    def has_no_device(self) -> bool:
        """True if Ironic knows no device of it: its inventory is gone, say, or has none."""
        return self.found is not None and not self.found.devices

    def store(self, *, dry_run: bool) -> Imported:
        """Write it, if it could be read."""
        if self.found is None:
            return Imported(node=self.node.uuid, host=self.node.host, failure=self.failure)
        return store.store(self.node, self.found, dry_run=dry_run)


def _read(conf: cfg.ConfigOpts, finder: Finder, node: facts.Node) -> _NodeRead:
    try:
        document = api.inventory(conf, node.uuid)
    except api.BadNodeAnswer as exc:
        return _NodeRead(node=node, failure=str(exc))
    return _NodeRead(
        node=node, found=finder.find(facts.inventory_of(document), node.accelerators)
    )


def _forget(uuid: str, name: str, *, dry_run: bool) -> Imported:
    notes = ("Ironic has no such node any more",)
    return Imported(node=uuid, host=name, notes=notes, gone=store.forget([uuid], dry_run=dry_run))


def _uuids(listed: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(each.get("uuid")).lower() for each in listed}


def _readable(
    listed: Sequence[Mapping[str, Any]],
) -> tuple[list[facts.Node], list[Imported]]:
    """The nodes that can be imported, and those that cannot."""
    nodes, failures = list[facts.Node](), list[Imported]()
    for each in listed:
        try:
            nodes.append(facts.node_of(each))
        except api.BadNodeAnswer as exc:
            uuid = str(each.get("uuid"))
            failures.append(Imported(node=uuid, host=uuid, failure=str(exc)))
    return nodes, failures


def _refuse_losses(
    conf: cfg.ConfigOpts, listed: int, gone: int, empty: int, known: int
) -> None:
    """Raise Misconfigured if so many nodes are gone that it may be the wrong Ironic."""
    share, lost = conf.conductor.max_gone_share, gone + empty
    if (gone and not listed) or (lost > 1 and lost > share * known):
        raise errors.Misconfigured(
            f"Ironic does not show {gone} any more of {known} known nodes, and no accelerators of "
            f"{empty}. Does the user of [ironic] see all nodes, and does Ironic still keep "
            "inventories? If the losses are true, use --remove-gone. Nothing was imported."
        )
