# SPDX-License-Identifier: Apache-2.0
"""The enrolled keys of hosts: who speaks for which host, and whether a message is a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import orm

from cyborg import db, rpc
from cyborg.common import errors
from cyborg.db import locks, models
from cyborg.rpc import signing

LOG = logging.getLogger(__name__)

#: The keys that a host may have at a time: the one in use and the next one.
KEYS_MAX = 2

#: A column has 63 bits that are not the sign.
_WINDOW = 63


@db.retry
def enrol(
    host_name: str, public_key: str, besides: Callable[[orm.Session], None] = lambda _session: None
) -> models.HostKey:
    """Accept messages that this key signs as the host's.

    Enrolling the same key again changes nothing. What is done ``besides`` is done in the same
    transaction.

    :raises Invalid: it is no public key, or the name is none of a host
    :raises Conflict: another host has it, it was revoked, or the host has two keys
    """
    if not rpc.is_host_name(host_name):
        raise errors.Invalid(f"{host_name!r} is not a valid host name.")
    key, fingerprint = models.HostKey, signing.fingerprint(public_key)
    with db.writer() as session:
        besides(session)
        row = session.scalar(sa.select(key).where(key.fingerprint == fingerprint))
        if row is None:
            row = key(host_name=host_name, public_key=public_key, fingerprint=fingerprint)
            _add(session, row)
        else:
            _refuse_other(row, host_name)
    LOG.info("Key %s is enrolled for host %s", fingerprint, host_name)
    return row


def _add(session: orm.Session, row: models.HostKey) -> None:
    valid = _valid_keys(session, row.host_name)
    if len(valid) >= KEYS_MAX:
        raise errors.Conflict(
            f"Host {row.host_name} has {KEYS_MAX} keys; revoke {valid[0].fingerprint} or "
            f"{valid[1].fingerprint} first."
        )
    session.add(row)
    with db.restarting():
        session.flush()


def _refuse_other(found: models.HostKey, host_name: str) -> None:
    """Raise Conflict if the key is another host's, or was revoked."""
    if found.host_name != host_name:
        raise errors.Conflict(
            f"public_key: it is the key of host {found.host_name}, and each host needs one of its "
            "own; delete the folder keys below [DEFAULT] state_path of the host that was copied."
        )
    if found.revoked_ms is not None:
        raise errors.Conflict(
            f"public_key: this key of host {host_name} was revoked; enrol another one, which "
            "`cyborg-agent key --next` makes."
        )


def _valid_keys(session: orm.Session, host_name: str) -> list[models.HostKey]:
    """The keys of the host that are not revoked, locked, so that no third one is added."""
    key = models.HostKey
    # A host may have no key yet, and Galera's other nodes do not see that a row is locked.
    locks.take(session, locks.HOST_KEYS)
    query = sa.select(key).where(key.host_name == host_name, key.revoked_ms.is_(None))
    return list(session.scalars(query.order_by(key.id).with_for_update()))


def list_keys(host_name: str) -> list[models.HostKey]:
    """The keys of a host, the first one first; also the revoked ones.

    :raises NotFound: there is neither a key nor a host of that name
    """
    key, host = models.HostKey, models.Host
    is_host = sa.select(host.id).where(host.name == host_name, host.removed.is_(False))
    found = db.read_all(sa.select(key).where(key.host_name == host_name).order_by(key.id))
    if not found and db.read_one(is_host) is None:
        raise errors.NotFound.of("Host", name=host_name)
    return found


@db.retry
def revoke(host_name: str, fingerprint: str | None = None) -> None:
    """Accept no message signed by this key any more, or by any key of the host.

    :raises NotFound: there is no such key
    """
    with db.writer() as session:
        found = revoke_in(session, host_name, fingerprint)
    if not found:
        which = "no key" if fingerprint is None else f"no key {fingerprint}"
        raise errors.NotFound(f"Host {host_name} has {which}.")
    LOG.warning("Key %s of host %s is revoked", fingerprint or "(all)", host_name)


def revoke_in(session: orm.Session, host_name: str, fingerprint: str | None = None) -> int:
    """The same in the caller's transaction; how many keys that are."""
    key = models.HostKey
    where = [key.host_name == host_name]
    if fingerprint is not None:
        where.append(key.fingerprint == fingerprint)
    since = sa.func.coalesce(key.revoked_ms, db.now_ms())
    return db.update(session, key, *where, revoked_ms=since)


def move_in(session: orm.Session, old: str, new: str, fingerprints: Collection[str]) -> None:
    """Make keys of one host those of another, and revoke its others, in the caller's transaction.

    :raises NotFound: it has no such key that is not revoked
    :raises Conflict: the other host would have more than two
    """
    found = {row.fingerprint: row for row in _valid_keys(session, old)}
    for fingerprint in fingerprints:
        if fingerprint not in found:
            raise errors.NotFound(f"Host {old} has no key {fingerprint}.")
    moved = [found.pop(each) for each in set(fingerprints)]
    if moved and len(moved) + len(_valid_keys(session, new)) > KEYS_MAX:
        raise errors.Conflict(
            f"Host {new} would have more than {KEYS_MAX} keys; revoke some of them first."
        )
    for row in moved:
        row.host_name = new
    for row in found.values():
        revoke_in(session, old, row.fingerprint)


def check(said: signing.Said, signature: object, *, required: bool) -> None:
    """Raise MessageRefused if the message is not the host's, or not new.

    If the host has no key, unsigned messages are accepted unless ``required``.
    """
    if not rpc.is_host_name(said.host):
        raise signing.MessageRefused(signing.UNREADABLE, "The message names no host.")
    # Again if another conductor takes a message of the same key meanwhile.
    while True:
        found = _read_keys(said.host)
        if not found:
            if required:
                raise signing.MessageRefused(signing.UNKNOWN_KEY, _not_enrolled(said.host))
            return
        one = signing.Signature.from_wire(signature)
        row = _check_signature(found, said, one)
        if not said.counted or _take(row, one):
            return


_TABLE = cast(sa.Table, models.HostKey.__table__)
_KEY = _TABLE.c
#: Made once, since every message of a host runs these.
_OF_HOST = sa.select(
    _KEY.id,
    _KEY.fingerprint,
    _KEY.public_key,
    _KEY.revoked_ms,
    _KEY.counter,
    _KEY.seen,
    db.now_ms().label("now_ms"),
).where(_KEY.host_name == sa.bindparam("host"))
_NOTE_TAKEN = (
    sa.update(_TABLE)
    .where(
        _KEY.id == sa.bindparam("the_id"),
        _KEY.counter == sa.bindparam("known_counter"),
        _KEY.seen == sa.bindparam("known_seen"),
        _KEY.revoked_ms.is_(None),
    )
    .values(
        counter=sa.bindparam("new_counter"), seen=sa.bindparam("new_seen"), used_ms=db.now_ms()
    )
)


@db.retry
def _read_keys(host_name: str) -> dict[str, sa.Row[Any]]:
    """The keys of a host by their fingerprints, each with the database's clock."""
    return {row.fingerprint: row for row in db.rows(_OF_HOST, {"host": host_name})}


def _check_signature(
    found: Mapping[str, sa.Row[Any]], said: signing.Said, one: signing.Signature
) -> sa.Row[Any]:
    """The valid key with which the host has signed the message, just now.

    :raises MessageRefused: it has not
    """
    if one.key not in found or one.sender != said.host:
        raise signing.MessageRefused(
            signing.UNKNOWN_KEY, f"Key {one.key:.8} is not enrolled for host {said.host}."
        )
    row = found[one.key]
    one.check(row.public_key, said)
    if row.revoked_ms is not None:
        raise signing.MessageRefused(
            signing.REVOKED, f"Key {one.key:.8} of host {said.host} is revoked."
        )
    one.check_time(row.now_ms)
    return row


def _not_enrolled(host_name: str) -> str:
    return (
        f"No key of host {host_name} is enrolled. Run `cyborg-agent key` there, and give what it "
        f"prints to `cyborg-status host enroll {host_name} KEY`."
    )


@db.retry
def _take(row: sa.Row[Any], one: signing.Signature) -> bool:
    """Note that the message was taken; False if the key has changed since it was read.

    :raises MessageRefused: it was taken already, or may have been
    """
    window = _moved(row.counter, row.seen, one.counter)
    if window is None:
        raise signing.MessageRefused(
            signing.REPLAYED,
            f"Message {one.counter} of host {one.sender} was taken already, or is too old for "
            f"that to be known: the highest is {row.counter}.",
        )
    given = {
        "the_id": row.id,
        "known_counter": row.counter,
        "known_seen": row.seen,
        "new_counter": window[0],
        "new_seen": window[1],
    }
    return db.write(_NOTE_TAKEN, given) > 0


def _moved(highest: int, seen: int, counter: int) -> tuple[int, int] | None:
    """The window after a message of this number; None if it may have been there before.

    Messages that a host sends at the same time may arrive in another order.
    """
    ahead = counter - highest
    if ahead > 0:
        kept = seen << ahead if ahead < _WINDOW else 0
        return counter, (kept | 1) & (2**_WINDOW - 1)
    if -ahead >= _WINDOW or seen >> -ahead & 1:
        return None
    return highest, seen | 1 << -ahead
