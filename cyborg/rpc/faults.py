# SPDX-License-Identifier: Apache-2.0
"""Errors of messages between services."""

from __future__ import annotations

from cyborg.common import errors


class BadMessage(errors.CyborgError):
    """The other service does not understand the message, or failed to handle it."""


class Unreadable(BadMessage):
    """A message holds what no such message has; the sentence names the field."""


class TooOld(BadMessage):
    """The other service, or the version that is pinned for it, has no such method."""


class HostUnreachable(errors.ServiceUnavailable):
    """No agent of the host answered in time. It may still do what it was asked."""


class BrokerUnreachable(HostUnreachable):
    """The message broker cannot be reached; nothing is known about the host."""


class HostStepRunning(HostUnreachable):
    """The step takes longer than the caller waits, and goes on. Asking again joins it.

    ``seconds`` is for how long by now, not counting how long it waited for others; None if the
    agent does not say.
    """

    def __init__(self, message: str, *, seconds: int | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class HostStepFailed(errors.CyborgError):
    """The driver refused the step. The message is the driver's, escaped for logs."""

    def __init__(self, message: str) -> None:
        super().__init__(message.encode(errors="backslashreplace").decode())


class ProgramFailed(HostStepFailed):
    """A deployable was not programmed. Unless ``written``, its former program still runs.

    ``report_counter`` is as in :class:`cyborg.rpc.ProgramAnswer`, or None if it is not known.
    """

    def __init__(
        self, message: str, *, written: bool, report_counter: int | None = None
    ) -> None:
        super().__init__(message)
        self.written = written
        self.report_counter = report_counter


class ReportFailed(errors.CyborgError):
    """No conductor is known to have stored the report."""


class NoPermit(errors.CyborgError):
    """No conductor is known to permit the write."""


class WriteRefused(NoPermit):
    """A conductor does not permit the write, and never will."""
