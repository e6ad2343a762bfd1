"""The fleet as the policies see it: keeps their board true to what is known."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocol.limits import NO_LIMITS, ModelLimits
from ..protocol.messages.generation import Generate
from ..protocol.settings import Settings
from .devices import Devices
from .fleet import Fleet, Waiting, Worker, now
from .footprint import Footprints
from .policies.assignment import decide
from .policies.board import Board, Rules
from .policies.loading import context_for, gpu_for, layers_for, load_of, threads_for
from .policies.resources import Footprint
from .policies.turns import FairTurns
from .policies.views import Action, Demand


class Overview:
    """The board of the policies, and the one who tells it what happens."""

    def __init__(
        self, settings: Settings, fleet: Fleet, devices: Devices, footprints: Footprints
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._devices = devices
        self._footprints = footprints
        self._arrivals = 0
        self._limits: dict[str, ModelLimits] = {}
        """By digest, as far as they were asked for."""
        self._standing: set[str] = set()
        self.board = Board(
            self._footprint,
            self._rules(),
            limits=self.limits,
            most_threads=self._most_threads,
            turns=FairTurns(fleet.queue),
        )
        fleet.on_left = self.board.remove

    # What happens

    def add(self, waiting: Waiting) -> None:
        """A request waits for a model whose facts are known.

        One that names no context needs the default: else whoever asks for a tiny one first would
        decide for all others how much of their prompts is read.
        """
        header, settings = waiting.header, self._settings
        facts = self._fleet.facts[header.digest]
        self._arrivals += 1
        self.board.add(
            Demand(
                waiting.key,
                header.digest,
                self._fleet.context_needed(waiting, settings.context_length),
                waiting.since,
                self._arrivals,
                suspect=waiting.suspect,
                preload=waiting.is_preload,
                cost=waiting.cost,
                prefix=tuple(header.prefix) if isinstance(header, Generate) else (),
                num_gpu=layers_for(facts, header.num_gpu),
                main_gpu=gpu_for(facts, header.main_gpu),
            )
        )

    def want(self, digest: str, instead: str | None) -> None:
        """A model is to be loaded although nobody asks for it, in place of another one."""
        self._standing.discard(instead or "")
        self.board.standing.pop(instead or "", None)
        self._standing.add(digest)
        if digest in self._fleet.facts:
            self.learn(digest)

    def learn(self, digest: str) -> None:
        """A model's facts are known, or are others than they were."""
        if digest in self._standing:
            default = self._settings.context_length
            self.board.standing[digest] = context_for(self._fleet.facts[digest], None, default)
        for waiting in self._fleet.waiting_for(digest):
            self.add(waiting)

    def look(self, changed: Iterable[Worker]) -> list[Action]:
        """The actions that follow when nothing has changed but these workers and the requests."""
        for worker in changed:
            self.update(worker)
        return decide(self.board, now())

    def look_at_everything(self) -> list[Action]:
        """The actions that follow from all that is known."""
        board, fleet = self.board, self._fleet
        for worker in fleet.workers.values():
            board.update(worker.view)
        for worker in board.workers.keys() - fleet.workers.keys():
            board.gone(worker)
        board.departed = fleet.departed(now())
        board.rules = self._rules()
        self.see_devices()
        return decide(board, now(), everything=True)

    def update(self, worker: Worker) -> None:
        """A worker is not what it was, or is no more."""
        if worker.id in self._fleet.workers:
            self.board.update(worker.view)
        else:
            self.board.gone(worker.id)

    def see_devices(self) -> None:
        """What is left of the devices may be other than it was.

        Until it is known which there are, there are none: what loads now would get the wrong ones.
        Nor is there one that an operator has drained.
        """
        drained = self._fleet.drained_devices
        known = self._devices.views() if self._devices.known else ()
        self.board.set_devices(device for device in known if device.name not in drained)

    # What the policies ask

    def limits(self, digest: str) -> ModelLimits:
        """What the operator has set for a model."""
        facts = self._fleet.facts.get(digest)
        if facts is None or not self._settings.model_limits:
            return NO_LIMITS
        if digest not in self._limits:
            self._limits[digest] = self._settings.limits_of(facts.name)
        return self._limits[digest]

    def _rules(self) -> Rules:
        settings = self._settings
        return Rules(
            self._devices.cores, settings.threads, settings.gpu_overhead, settings.sched_spread
        )

    def _footprint(self, digest: str, context_length: int) -> Footprint | None:
        facts = self._fleet.facts[digest]
        return self._footprints.of(load_of(facts, context_length, self._settings))

    def _most_threads(self, digest: str) -> int:
        return threads_for(self._fleet.facts[digest], self._settings.threads)
