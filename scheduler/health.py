"""How a peer stands, by the clock: what counts as gone, and what has to be killed. Pure."""

from __future__ import annotations

from ..protocol.settings import Settings
from .fleet import Peer, Worker
from .policies.assignment import WorkerState

SILENCE = 15.0
"""Seconds without a heartbeat after which a peer that no pidfd watches counts as gone."""

UNREACHABLE = 3.0
"""Seconds without a heartbeat after which a worker that no pidfd watches counts as gone where its
connection is gone, too: what broke for another reason is connected again within half a second."""


def silent(peer: Peer, moment: float) -> bool:
    """Whether a peer counts as gone, because its heartbeats alone could tell that it is there."""
    return peer.pidfd is None and moment - peer.heard > SILENCE


def unreachable(peer: Peer, moment: float) -> bool:
    """Whether a peer that cannot be sent anything counts as gone."""
    return peer.pidfd is None and moment - peer.heard > UNREACHABLE


def overdue(worker: Worker, settings: Settings, moment: float) -> str | None:
    """Why a worker's load has to be given up; None while it has time left."""
    if worker.state is WorkerState.LOADING and moment - worker.since > settings.load_timeout:
        return f"it took more than {settings.load_timeout:g} s (PRONK_LOAD_TIMEOUT)"
    return None


def trouble(worker: Worker, settings: Settings, moment: float) -> str | None:
    """Why a worker has to be killed; None while it is well."""
    if worker.state is WorkerState.ENDING and moment - worker.since > SILENCE:
        return "it did not end by itself"
    if moment - worker.heard > settings.stall_timeout:
        return "its heartbeat stopped"
    if worker.running and moment - worker.progressed > settings.stall_timeout:
        return "its engine makes no progress"
    return None
