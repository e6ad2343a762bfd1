"""What runs, and which version answers."""

from __future__ import annotations

from importlib.metadata import version
from uuid import uuid4

from ...protocol.messages.generation import Caller
from ...protocol.messages.status import ListRunning, RunningModel
from ..relay import Relay

VERSION = version("pronk")
"""Pronk's own version."""


class Status:
    """The state of the server as callers see it."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def running(self, caller: Caller) -> list[RunningModel]:
        """The loaded models. Raises UNAVAILABLE while the scheduler is down."""
        answer = await self._relay.list_running(ListRunning(uuid4().hex))
        return answer.models
