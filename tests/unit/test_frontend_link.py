"""The frontend's line to the scheduler, with a scheduler that takes nothing any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pronk.frontend import link as link_module
from pronk.frontend.link import SchedulerLink
from pronk.protocol.channels import Router
from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.fleet import Hello, Role, SchedulerHeartbeat
from pronk.protocol.messages.status import ListRunning
from pronk.protocol.process import new_incarnation, own_identity
from pronk.protocol.state import StateDirectory
from support.played import PATIENCE, until


async def test_a_question_that_cannot_be_sent_is_not_waited_for(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "GONE", 3600.0)

    def received(peer: str, message: Any, body: bytes) -> None:
        router.send(peer, SchedulerHeartbeat("0" * 16))

    incarnation = new_incarnation()
    router = Router(state.scheduler, received)
    link = SchedulerLink(
        state.scheduler,
        incarnation,
        hello=lambda: Hello(VERSION, Role.FRONTEND, incarnation, own_identity()),
        on_announced=lambda: None,
        on_message=lambda message: None,
        on_beat=lambda: 0,
        on_refused=lambda failure: None,
        outbox_bytes=1,
    )
    try:
        await until(lambda: link.up, "it is greeted")
        router.close()
        await until(lambda: not link.send(ListRunning("full")), "nobody takes anything")
        async with asyncio.timeout(PATIENCE):  # long before the scheduler counts as gone
            with pytest.raises(PronkError) as refused:
                await link.ask("key", ListRunning("key"), patience=3600)
        assert refused.value.code is Code.UNAVAILABLE
    finally:
        link.close()
        router.close()
