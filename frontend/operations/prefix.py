"""Prompts as hash chains: equal beginnings have equal hashes, and nothing else can be read."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from ...protocol.recent import LONGEST_CHAIN

_HASH_BYTES = 16


def prefix_chain(digest: str, parts: Iterable[tuple[str, bytes]]) -> list[bytes]:
    """The chain over a model's digest and the parts of a prompt, each a role and a text.

    Hash n covers the digest and the first n parts, so two prompts share as many hashes as they
    have parts in common.
    """
    link = blake2b(digest.encode(), digest_size=_HASH_BYTES).digest()
    chain = [link]
    for role, text in parts:
        if len(chain) == LONGEST_CHAIN:
            break
        # The role's length is fixed by its terminator: no role holds a NUL.
        link = blake2b(b"%s%s\0%s" % (link, role.encode(), text), digest_size=_HASH_BYTES).digest()
        chain.append(link)
    return chain
