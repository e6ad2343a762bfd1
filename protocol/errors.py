"""One taxonomy of errors for every process and every dialect.

A process that cannot do what it was asked raises `PronkError` with a `Code`. The code decides the
HTTP status; the message is written for the person who gets it: what was wrong and what to do next.
It never carries a path of the host, a traceback or a token.
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """What went wrong, in the words that every dialect maps to its own."""

    INVALID_REQUEST = "invalid_request"
    """The request cannot mean anything: wrong type, unknown role, prompt beyond the context."""
    NOT_FOUND = "not_found"
    """The named model is not in the library."""
    TOO_LARGE = "too_large"
    """A body or message is over its bound."""
    QUEUE_FULL = "queue_full"
    """The waiting room is full, or the request waited there too long; try again after `retry_after`
    seconds."""
    UNAVAILABLE = "unavailable"
    """A process that is needed is not there just now, or the server is shutting down."""
    LOAD_FAILED = "load_failed"
    """The model's file could not be loaded."""
    WORKER_LOST = "worker_lost"
    """The process that was generating died."""
    SLOW_CLIENT = "slow_client"
    """The client read so slowly that its waiting text passed the bound."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The request took longer than it may."""
    STORAGE_FULL = "storage_full"
    """The disk of the library has no room for it."""
    REGISTRY_FAILED = "registry_failed"
    """A registry that models come from refused, could not be reached, or sent what it should not
    have."""
    NOT_IMPLEMENTED = "not_implemented"
    """The API has it, this version of Pronk does not."""
    CANCELLED = "cancelled"
    """The client went away, or asked for the end."""
    INTERNAL = "internal"
    """A fault of ours."""

    @property
    def http_status(self) -> int:
        """The HTTP status code that a dialect answers with, before a stream has begun."""
        return _HTTP_STATUS[self]


_HTTP_STATUS = {
    Code.INVALID_REQUEST: 400,
    Code.NOT_FOUND: 404,
    Code.TOO_LARGE: 413,
    Code.QUEUE_FULL: 503,
    Code.UNAVAILABLE: 503,
    Code.LOAD_FAILED: 500,
    Code.WORKER_LOST: 500,
    Code.SLOW_CLIENT: 408,
    Code.DEADLINE_EXCEEDED: 504,
    Code.STORAGE_FULL: 507,
    Code.REGISTRY_FAILED: 502,
    Code.NOT_IMPLEMENTED: 501,
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
}


class PronkError(Exception):
    """A failure with a code and a message that may be shown to the caller as it is."""

    def __init__(self, code: Code, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        """Seconds after which another try makes sense, or None."""
