# SPDX-License-Identifier: Apache-2.0
"""Words of administrators about hosts: which keys speak for one, and which node it has."""

from __future__ import annotations

import logging

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, history, host_keys, rpc, work
from cyborg.common import errors
from cyborg.db import models
from cyborg.inventory import acceptance, bare_metal

LOG = logging.getLogger(__name__)


def enrol(host_name: str, public_key: str, node: str | None = None) -> models.HostKey:
    """Accept what this key signs as the host's, and the node as its node, if there is one.

    :raises Invalid: see :func:`host_keys.enrol`, or the node is no name
    :raises Conflict: see :func:`host_keys.enrol`, or another host has the node
    """
    if node is not None:
        _check_name(node)
    return host_keys.enrol(
        host_name, public_key, lambda session: _give(session, host_name, node)
    )


def _give(session: orm.Session, host_name: str, node: str | None) -> None:
    if node is None:
        return
    host = _locked(session, host_name)
    if host is not None and not host.removed:
        _set(session, host, node)
        return
    # It has not reported yet.
    _refuse_taken(session, node, None if host is None else host.id)
    if host is None:
        host = models.Host(name=host_name, audited_ms=db.now_ms())
        session.add(host)
    host.node, host.removed, host.down = node, False, True


@db.retry
def move(host_name: str, node: str) -> None:
    """Have a host whose node has another name now, with all that guests have there.

    :raises Invalid: the node is no name
    :raises NotFound: there is no such host
    :raises Conflict: another host has the node
    """
    _check_name(node)
    with db.writer() as session:
        host = _locked(session, host_name)
        if host is None or host.removed:
            raise errors.NotFound.of("Host", name=host_name)
        _set(session, host, node)


def _check_name(node: str) -> None:
    if not rpc.is_host_name(node):
        raise errors.Invalid(f"{node!r} is not a valid node name.")


def _locked(session: orm.Session, host_name: str) -> models.Host | None:
    query = sa.select(models.Host).where(models.Host.name == host_name)
    return session.scalar(query.with_for_update())


def _set(session: orm.Session, host: models.Host, node: str) -> None:
    if host.node == node:
        return
    bare_metal.refuse(host, f"Node {host.node}")
    _refuse_taken(session, node, host.id)
    history.rename_host(session, host.node, node)
    LOG.info("Host %s has node %s, and no longer %s", host.name, node, host.node)
    host.node, host.report_digest = node, None
    work.want(session, work.PLACEMENT, [host.name])


def _refuse_taken(session: orm.Session, node: str, host_id: int | None) -> None:
    acceptance.lock_nodes(session)
    owner = acceptance.owner_of(session, node, host_id)
    if owner is not None:
        raise errors.Conflict(f"Node {node} belongs to host {owner}.")


@db.retry
def rename_host(old: str, new: str, keys: tuple[str, ...] = ()) -> None:
    """Keep the record of a host under the new name of its machine, with all that guests have.

    Of its keys those with these fingerprints are the new host's, and the others are revoked.

    :raises Invalid: the new name is none
    :raises NotFound: there is no host of the old name, or it has no such key
    :raises Conflict: it is up, or the new name has a record of its own, or too many keys
    """
    if not rpc.is_host_name(new):
        raise errors.Invalid(f"{new!r} is not a valid host name.")
    host = models.Host
    with db.writer() as session:
        found = _locked(session, old)
        if found is None or found.managed_by != models.AGENT:
            raise errors.NotFound.of("Host", name=old)
        if not found.down:
            raise errors.Conflict(f"Host {old} is up; stop its agent, and wait until it is down.")
        if session.scalar(sa.select(host.id).where(host.name == new)) is not None:
            raise errors.Conflict(f"There is a record of host {new}; remove it first.")
        found.name, found.report_digest = new, None
        host_keys.move_in(session, old, new, keys)
        work.want(session, work.PLACEMENT, [new])
