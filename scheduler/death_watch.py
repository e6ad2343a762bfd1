"""Hearing of the deaths of peers of this host, once what they said last is read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ..protocol.doors import Doors
from ..protocol.process import open_pidfd
from .fleet import Peer

_LOOKS = 10
_LOOK_SECONDS = 0.002
"""How often, and how far apart, the connection of a dead process is looked at until it is over."""


class DeathWatch:
    """Watches peers by their pidfds, where the host can tell. `knock` is a message that does no
    harm: while it can be sent to a dead peer, that one's last words may still be on their way.
    """

    def __init__(self, router: Doors, knock: Any) -> None:
        self._router = router
        self._knock = knock

    def watch(self, peer: Peer, gone: Callable[[], None]) -> None:
        """Has `gone` called once the peer's process has died and what it had said has been read:
        that a suspect has passed its step counts before the death does, and so does the end of a
        request. Where this process stood still, neither is read yet.
        """
        peer.pidfd = None if peer.remote else open_pidfd(peer.process)
        if peer.pidfd is not None:
            asyncio.get_running_loop().add_reader(peer.pidfd, self._died, peer, gone, _LOOKS)

    def forget(self, peer: Peer) -> None:
        """Watches it no longer."""
        if peer.pidfd is not None:
            asyncio.get_running_loop().remove_reader(peer.pidfd)
            os.close(peer.pidfd)
            peer.pidfd = None

    def _died(self, peer: Peer, gone: Callable[[], None], looks: int) -> None:
        if peer.pidfd is None:
            return  # given up meanwhile
        peer.dead = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(peer.pidfd)
        if looks and self._router.send(peer.id, self._knock):
            loop.call_later(_LOOK_SECONDS, self._died, peer, gone, looks - 1)
            return
        self._router.catch_up()
        gone()
