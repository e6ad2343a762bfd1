"""Files on their way into the library, on a socket of their own beside the store's questions.

A frontend passes on what its client sends as it comes, and never more than the store has granted:
`UploadCredit` says up to which byte it may send. A store that is restarted knows nothing of an
upload and answers its parts with `CallFailed`: the client's bytes are gone, and it has to send them
again.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fields import Count, Digest, RequestId

MAX_PART = 1024 * 1024
"""Bytes of a file in one message."""


@dataclass(frozen=True, slots=True)
class FindBlob:
    """Frontend → store: is there a file with this digest?"""

    call: RequestId
    digest: Digest


@dataclass(frozen=True, slots=True)
class BlobFound:
    """Store → frontend. `CallFailed` (`not_found`) where it is not there."""

    call: RequestId
    size: Count


@dataclass(frozen=True, slots=True)
class BeginUpload:
    """Frontend → store: a file with this digest is about to come."""

    call: RequestId
    digest: Digest
    size: Count | None = None
    """Bytes in all, where the client said so beforehand."""


@dataclass(frozen=True, slots=True)
class UploadCredit:
    """Store → frontend: send on, up to this byte."""

    call: RequestId
    until: Count


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Frontend → store: the bytes from `offset` on, in the message's body."""

    call: RequestId
    offset: Count


@dataclass(frozen=True, slots=True)
class EndUpload:
    """Frontend → store: that was all."""

    call: RequestId
    size: Count
    """Bytes in all."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Store → frontend: the file is complete, is what its digest says, and lies on the disk."""

    call: RequestId


MESSAGES = (
    FindBlob,
    BlobFound,
    BeginUpload,
    UploadCredit,
    UploadPart,
    EndUpload,
    Uploaded,
)
