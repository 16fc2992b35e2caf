# SPDX-License-Identifier: Apache-2.0
"""Lines of the log about what others send: one for a message, short, and only so many a minute."""

from __future__ import annotations

import logging
import time

_MINUTE = 60
#: Lines of a kind in a minute.
_MOST = 20
#: What is said of an answer that nobody waits for: who has asked says so, if it is there at all.
_LEFT_OUT = ("The reply %(msg_id)s failed", "%(reply_queue)s doesn't", "No calling threads")

#: Of each kind of line the last minute that had one, and how many.
_said: dict[str, tuple[float, int]] = {}


def is_seldom(kind: str, most: int = _MOST) -> bool:
    """True if there is room for one more line of a kind. There must not be many kinds."""
    now = time.monotonic() // _MINUTE
    minute, count = _said.get(kind, (now, 0))
    count = count if minute == now else 0
    _said[kind] = now, count + 1
    return count < most


def warn(logger: logging.Logger, text: str, *given: object, most: int = _MOST) -> None:
    """Log what came, unless too much of that kind came in this minute."""
    if is_seldom(text, most):
        logger.warning(text, *given)


def in_one(record: logging.LogRecord) -> bool:
    """Let a library say in one line what it has to say of a message, and only so often."""
    kind = str(record.msg)
    if record.levelno < logging.INFO:
        return True
    if kind.startswith(_LEFT_OUT) or not is_seldom(kind):
        return False
    if record.exc_info:
        text = f"{record.getMessage()}: {record.exc_info[1]!r:.200}"
        record.msg, record.args, record.exc_info = text, (), None
    return True
