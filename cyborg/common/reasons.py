# SPDX-License-Identifier: Apache-2.0
"""Reasons why things are as they are: a sentence for those concerned, and all for operators.

The two are stored in columns beside each other: ``private_reason`` is null where the public one
says all. A column without such a neighbour is for those who may see hosts, as the words of drivers
and administrators are; what others read instead is the same for all its rows.

No code reads a stored reason back. Where it must decide by one, the reason's code is stored too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason: what code may decide by, and two texts.

    ``public`` names no host, no path and nothing of other projects. ``private`` is the same with
    all that, for those who may see hosts; None if there is no more to say.
    """

    code: str
    public: str
    private: str | None = None

    @classmethod
    def of(cls, code: str, what: str, detail: object) -> Reason:
        """A reason by what has happened, a sentence without its full stop, and the private why."""
        return cls(code, f"{what}.", f"{what}: {detail}")

    @property
    def whole(self) -> str:
        """The whole reason."""
        return self.public if self.private is None else self.private

    def columns(self, public: str = "state_reason") -> dict[str, str | None]:
        """The reason as the two columns of a row."""
        return {public: self.public, "private_reason": self.private}


#: Codes of why binds fail. The accelerator is not given out any more; it is, but others have all
#: that is free at this moment; it could not be made ready on its host; it is no guest's kind.
UNAVAILABLE, NONE_FREE, NOT_READY = "unavailable", "none_free", "not_ready"
CONTAINERS_ONLY = "containers_only"

#: What the owner of an instance reads of that when the ARQ is gone.
OF_BINDS = {
    UNAVAILABLE: (
        "The accelerator that was chosen for the instance became unavailable before the instance "
        "had it. Try again."
    ),
    NONE_FREE: (
        "All accelerators where the instance was placed had been given away meanwhile. Try again."
    ),
    CONTAINERS_ONLY: (
        "The accelerator that was chosen for the instance is for containers only. Ask for another "
        "resource class in the device profile."
    ),
    NOT_READY: (
        "The accelerator could not be made ready on its host. Try again; if that fails too, ask "
        "the administrator of the cloud."
    ),
}


class Reader(Protocol):
    """A reader of reasons."""

    @property
    def sees_hosts(self) -> bool:
        """True if that is somebody who may see hosts."""


_Public = TypeVar("_Public", bound=str | None)


def shown(reader: Reader, public: _Public, private: str | None) -> _Public | str:
    """The text of a stored reason that the reader is shown."""
    return public if private is None or not reader.sees_hosts else private


def shown_words(reader: Reader, instead: str, words: str | None) -> str | None:
    """The text shown of a column for those who may see hosts; None if there is no reason."""
    return words if words is None else shown(reader, instead, words)


def is_news(before: object, now: object) -> bool:
    """True if a reason is another one than before, so that it must be written and told."""
    return before != now
