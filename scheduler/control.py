"""What operators ask the scheduler, at a socket of its own.

The socket lies in the state directory and nowhere else, so that no worker of another host reaches
it: whoever can open it owns the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..protocol.channels import Router
from ..protocol.errors import Code, PronkError
from ..protocol.logs import RateLimitedLog
from ..protocol.messages.control import (
    Drain,
    DrainBegun,
    DrainKind,
    ListProcesses,
    ProcessEntry,
    ProcessList,
)
from ..protocol.messages.failure import Failure
from ..protocol.messages.fleet import BeginDraining, Role
from ..protocol.messages.library import CallFailed
from ..protocol.state import StateDirectory
from .dispatcher import Dispatcher
from .drained import write_drained
from .fleet import Fleet, Frontend, Peer, Worker
from .policies.assignment import WorkerState

_log = logging.getLogger(__name__)

Named = TypeVar("Named", bound=Peer)

MOST_DRAINED = 4096
"""Devices that can be drained at a time."""


class Control:
    """Answers operators, and has drained what they name.

    `send` reaches frontends and workers.
    """

    def __init__(
        self,
        state: StateDirectory,
        fleet: Fleet,
        dispatcher: Dispatcher,
        send: Callable[[str, Any], bool],
    ) -> None:
        self._file = state.drained_devices
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._send = send
        self._odd = RateLimitedLog(_log)
        self._router = Router(state.control, self._asked)

    def close(self) -> None:
        """Closes the socket."""
        self._router.close()

    def _asked(self, operator: str, question: Any, body: bytes) -> None:
        match question:
            case ListProcesses(call):
                self._router.send(operator, self._list(call))
            case Drain(call):
                answer: DrainBegun | CallFailed
                try:
                    answer = DrainBegun(
                        call, [_entry(self._fleet, peer) for peer in self._drain(question)]
                    )
                except PronkError as error:
                    answer = CallFailed(call, Failure.of(error))
                self._router.send(operator, answer)
            case _:
                self._odd.warning("not a question", f"{type(question).__name__} of an operator")

    def _list(self, call: str) -> ProcessList:
        peers = [*self._fleet.frontends.values(), *self._fleet.workers.values()]
        return ProcessList(
            call,
            sorted((_entry(self._fleet, peer) for peer in peers), key=lambda entry: entry.name),
            waiting=len(self._fleet.waiting),
            drained_devices=sorted(self._fleet.drained_devices),
            complete=self._dispatcher.settled,
        )

    def _drain(self, order: Drain) -> Sequence[Worker | Frontend]:
        """Begins what the order says; returns the processes that leave for it."""
        leaving: Sequence[Worker | Frontend]
        match order.kind:
            case DrainKind.FRONTEND:
                leaving = _named(self._fleet.frontends, order.name, "frontend")
            case DrainKind.WORKER:
                leaving = _named(self._fleet.workers, order.name, "worker")
            case DrainKind.DEVICE:
                self._mark(order.name, drained=not order.undo)
                if order.undo:
                    self._dispatcher.advance()
                    return []
                workers = self._fleet.workers.values()
                leaving = [worker for worker in workers if order.name in worker.devices]
        for peer in leaving:
            _log.info("%s is drained by an operator", peer.name or peer.id)
            if isinstance(peer, Worker):
                self._dispatcher.drain(peer, "drained by an operator")
                if peer.state is not WorkerState.DRAINING:
                    continue  # it has nothing to finish, and was told to exit
            self._send(peer.id, BeginDraining(order.timeout))
        self._dispatcher.advance()
        return leaving

    def _device_names(self) -> set[str]:
        """The names under which an operator can speak of a device."""
        there = {device.name for device in self._dispatcher.devices.views()}
        held = {name for worker in self._fleet.workers.values() for name in worker.devices}
        return there | held | self._fleet.drained_devices

    def _mark(self, device: str, *, drained: bool) -> None:
        """Has nothing placed on a device any more, or lifts that."""
        names, known = self._fleet.drained_devices, self._device_names()
        if device not in known:
            there = ", ".join(sorted(known)) or "none that a model could lie on"
            raise PronkError(Code.NOT_FOUND, f"there is no device {device!r}; there are: {there}")
        if drained and len(names) >= MOST_DRAINED:
            raise PronkError(Code.INVALID_REQUEST, "too many devices are drained already")
        if drained == (device in names):
            return
        write_drained(self._file, names | {device} if drained else names - {device})
        (names.add if drained else names.discard)(device)
        _log.info("device %s is %s", device, "drained" if drained else "used again")


def _named(peers: Mapping[str, Named], name: str, kind: str) -> list[Named]:
    found = [peer for peer in peers.values() if name in (peer.name, peer.id)]
    if not found:
        there = ", ".join(sorted(peer.name or peer.id for peer in peers.values())) or "none"
        raise PronkError(Code.NOT_FOUND, f"there is no {kind} {name!r}; there are: {there}")
    return found


def _entry(fleet: Fleet, peer: Worker | Frontend) -> ProcessEntry:
    if isinstance(peer, Worker):
        facts = fleet.facts.get(peer.digest or "")
        told = peer.model.name if peer.model else ""
        role, state, requests = Role.WORKER, peer.state.value, len(peer.running)
        model, devices = facts.name if facts else told, peer.devices
    else:
        role, state = Role.FRONTEND, "draining" if peer.draining else "serving"
        requests, model, devices = peer.in_flight, "", list[str]()
    return ProcessEntry(
        peer.name or peer.id, peer.id, role, peer.process.pid, state, requests, model, devices
    )
