# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between two services."""

from __future__ import annotations

from cyborg import errors


class BadMessage(errors.CyborgError):
    """The other service does not understand the message, or failed over it."""


class TooOld(BadMessage):
    """The other service, or the version that messages to it keep to, has no such method."""


class HostUnreachable(errors.ServiceUnavailable):
    """No agent of the host answered in time. What it was asked may happen all the same."""


class BrokerUnreachable(HostUnreachable):
    """The message broker cannot be reached; nothing is known of the host."""


class HostStepRunning(HostUnreachable):
    """The agent lives, but the step takes longer than the caller waits. Asking again joins it."""


class HostStepFailed(errors.CyborgError):
    """The driver refused the step; the message is its sentence, in what a log can hold."""

    def __init__(self, message: str) -> None:
        super().__init__(message.encode(errors="backslashreplace").decode())


class ProgramFailed(HostStepFailed):
    """A deployable was not programmed. Unless ``written``, what ran on it before still runs.

    ``report_counter`` is as in :class:`cyborg.rpc.ProgramAnswer`, where it is known.
    """

    def __init__(
        self, message: str, *, written: bool, report_counter: int | None = None
    ) -> None:
        super().__init__(message)
        self.written = written
        self.report_counter = report_counter


class ReportFailed(errors.CyborgError):
    """No conductor is known to have stored the report."""
