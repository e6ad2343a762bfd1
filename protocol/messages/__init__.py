"""Every message that crosses a process boundary, one module per conversation.

- `fleet`: everyone with the scheduler: who is there, alive, and what it holds
- `placement`: the scheduler with workers: which model a worker has
- `devices`: the scheduler with blank workers: what there is to compute on
- `generation`: one request's life, between frontend, scheduler and worker
- `embedding`: the same for texts that become vectors
- `library`: questions to the store
- `changes`: what the store is to change, and how far it is
- `uploads`: files on their way to the store
- `status`: questions to the scheduler
- `control`: an operator's questions to the scheduler, and draining

`MESSAGES` names them all; the codec accepts nothing else.
"""

from __future__ import annotations

from typing import Any

from . import (
    changes,
    control,
    devices,
    embedding,
    fleet,
    generation,
    library,
    placement,
    status,
    uploads,
)

CONVERSATIONS = (
    fleet,
    placement,
    devices,
    generation,
    embedding,
    library,
    changes,
    uploads,
    status,
    control,
)
"""The modules of messages, in the order in which `docs/protocol.md` tells of them."""

MESSAGES: dict[str, type[Any]] = {
    message.__name__: message for module in CONVERSATIONS for message in module.MESSAGES
}
"""Message classes by the name that stands on the wire."""
