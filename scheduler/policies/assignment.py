"""Which waiting request goes to which worker, which model is loaded where, and which has to go.

Pure: `decide` sees a board and returns actions; nothing here knows sockets, clocks or bodies. Each
action is a request of the policy to the world; the board hears of it when it was carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from .board import Board, Queue
from .cores import set_threads
from .eviction import OVERTAKEN, make_room, stays_until
from .growth import grow, shrink, stand
from .look import Look
from .placement import Placement, Wishes, is_near, place, too_large
from .resources import DeviceView, Footprint
from .routing import route
from .views import (
    Action,
    Demand,
    Dispatch,
    Fail,
    LoadModel,
    WorkerState,
    WorkerView,
)

UNSUITED = "a request needs a larger context"

LOOK_PAST = 64
"""Requests that cannot be served which one look passes over in search of some that can."""


def assign(
    demands: Iterable[Demand],
    workers: Iterable[WorkerView],
    devices: Iterable[DeviceView],
    board: Board,
    now: float,
) -> list[Action]:
    """The actions for one snapshot, on an empty board that holds the rules."""
    board.set_devices(devices)
    for worker in workers:
        board.update(worker)
    for demand in demands:
        board.add(demand)
    return decide(board, now, everything=True)


def decide(board: Board, now: float, *, everything: bool = False) -> list[Action]:
    """The actions that bring the waiting requests forward now.

    Looks at the models that something has changed for, or at `everything`, which has to happen
    about once a second: some decisions follow from time alone.

    - A request goes to a ready replica of its model with a free slot and enough context, to the one
      that has read most of its prompt where there are several. Nothing joins a suspect.
    - A model without a replica that suits is loaded by a blank worker, where there is memory. Where
      there is none, or no worker, the idle replicas used least recently that nobody waits for make
      room; streams are never ended. Its own idle one goes first, where it is too small.
    - Where others wait for all of them, a request that has waited for `OVERTAKEN` has some make
      room nevertheless, as soon as they are idle: they get nothing new until then. Only those that
      have stayed for a while: exchanging models all the time serves nobody.
    - A model that would not even fit alone is refused with the numbers.
    - A model whose queue stays full gets one more replica on a device where it has none.
    """
    look = Look(board, now)
    if everything:
        board.touch()
    _Serving(look).serve(board.take_changed())
    if everything:
        stand(look)
        grow(look)
        shrink(look)
    set_threads(look, everything)
    return look.actions


class _Model:
    """One model during one look."""

    def __init__(self, digest: str, queue: Queue, board: Board) -> None:
        self.digest = digest
        self.queue = queue
        self.passed = 0
        """Requests that could not be served."""
        self.started = False
        """Whether it was decided what is done for those that no replica suits."""
        self.ready: list[WorkerView] = []
        self.loading: list[WorkerView] = []
        self.leaving = 0
        """Replicas that get nothing new."""
        for replica in board.replicas.get(digest, {}).values():
            if replica.id in board.claimed:
                self.leaving += 1
            elif replica.state is WorkerState.READY:
                self.ready.append(replica)
            else:
                self.loading.append(replica)

    @property
    def replicas(self) -> int:
        return len(self.ready) + len(self.loading) + self.leaving


class _Serving:
    """Brings requests to replicas, and models to workers."""

    def __init__(self, look: Look) -> None:
        self._look = look

    # Requests to replicas

    def serve(self, digests: set[str]) -> None:
        """Looks at these models' requests, in the order of all requests."""
        board = self._look.board
        for digest in digests:
            self._end_claimed(digest)
        ordered = sorted(digests, key=self._look.rank) if len(digests) > 1 else digests
        for digest in ordered:
            board.starved.discard(digest)
            model = _Model(digest, board.queues[digest], board)
            for demand in board.waiting_for(digest):
                if not self._serve_one(model, demand) or model.passed >= LOOK_PAST:
                    break

    def _end_claimed(self, digest: str) -> None:
        board = self._look.board
        claim = board.claims.get(digest)
        if claim is None:
            return
        for worker in sorted(claim.workers):
            if worker in board.idle and worker not in self._look.given:
                self._look.end(board.workers[worker], claim.reason)

    def _serve_one(self, model: _Model, demand: Demand) -> bool:
        """Does what can be done for a request; says whether later ones have a chance."""
        suiting = [replica for replica in model.ready if self._suits(replica, demand)]
        if not suiting:
            return self._start(model, demand)
        if demand.preload:
            self._look.actions.append(Dispatch(demand.id, suiting[0].id))
            return True
        suiting = [replica for replica in suiting if not self._is_guarded(replica)]
        if not sum(max(0, self._look.slots_of(replica)) for replica in suiting):
            model.passed += 1
            return any(
                self._look.slots_of(replica) > 0 and not self._is_guarded(replica)
                for replica in model.ready
            )
        among = [replica.id for replica in suiting] if len(suiting) > 1 else []
        matched = self._look.board.prefixes.matched(demand.prefix, among)
        chosen = route(demand, suiting, self._look.slots, matched, self._look.now - demand.since)
        if chosen is None:
            model.passed += 1
            return True
        self._look.slots[chosen.id] -= 1
        self._look.given.add(chosen.id)
        if demand.suspect:
            self._look.suspects.add(chosen.id)
        self._look.actions.append(Dispatch(demand.id, chosen.id))
        return True

    def _is_guarded(self, replica: WorkerView) -> bool:
        """Whether a suspect runs there: nothing joins it before it is cleared. Of another suspect,
        and of a new request, nobody knows yet whether a worker survives it.
        """
        return bool(replica.suspects) or replica.id in self._look.suspects

    def _suits(self, replica: WorkerView, demand: Demand) -> bool:
        if demand.context_length > replica.context_length:
            return False
        wanted = demand.num_gpu
        if wanted is None or wanted == replica.num_gpu or not self._look.board.has_gpu:
            return True
        layers = min(wanted, replica.all_layers) if replica.all_layers else wanted
        return layers == replica.layers

    # Models to workers

    def _start(self, model: _Model, demand: Demand) -> bool:
        """Has a replica made that suits; says whether the model's later ones have a chance."""
        others = bool(model.ready)
        # Of those that no replica suits, the one that came first counts.
        since = demand.since if others else model.queue.first.since
        patient = self._look.now - since < OVERTAKEN
        model.passed += 1
        if model.started:
            return others
        model.started = True
        if any(self._suits_later(replica, demand) for replica in model.loading):
            return others
        if model.leaving and not model.ready:
            return False
        target = self._target(model, demand)
        if target is None:
            return others
        context, footprint, wishes, ideal = target
        board = self._look.board
        most = max(1, board.limits(model.digest).most)
        fits = self._fits(model.digest, footprint, wishes, ideal)
        blank = self._look.has_blank(model.digest)
        if blank and footprint is None:
            board.starved.add(model.digest)  # until it is measured
            return others
        if blank and footprint and model.replicas < most and (placement := fits({})):
            self._look.load(model.digest, demand, context, footprint, placement)
            return others
        if model.replicas < most and self._load_elsewhere(model.digest, context):
            return others
        board.starved.add(model.digest)
        if own := [replica for replica in model.ready if self._look.untouched(replica)]:
            chosen = min(own, key=lambda replica: (replica.context_length, replica.last_used))
            self._look.end(chosen, UNSUITED)
            return others
        if others and patient:
            return True
        claim = board.claims.get(model.digest)
        if model.loading or (claim and claim.workers):
            return others
        if others and model.replicas >= most:
            self._claim_own(model, demand)
            return others
        if self._returns_enough(model, fits, blank):
            return others
        if found := make_room(self._look.idle_of_others(model.digest), fits, worker=not blank):
            reason = "another model needs its worker"
            self._look.claim(model.digest, found[0], found[1].taken, reason)
            return others
        modestly = self._fits(model.digest, footprint, wishes, ideal, slots=False)
        if blank and footprint and model.replicas < most and (placement := modestly({})):
            self._look.load(model.digest, demand, context, footprint, placement)
        elif others:
            # Its own place is the first that it gets for a larger replica.
            self._claim_own(model, demand)
        elif not patient:
            candidates = self._look.idle_of_others(model.digest) + self._look.movable(model.digest)
            if found := make_room(candidates, modestly, worker=not blank):
                self._look.claim(model.digest, found[0], found[1].taken)
        return others

    def _suits_later(self, replica: WorkerView, demand: Demand) -> bool:
        return demand.context_length <= replica.context_length

    def _claim_own(self, model: _Model, demand: Demand) -> None:
        chosen = self._least_busy(model.ready)
        # A larger context serves the others, too; where only the layers are others, requests could
        # have it loaded in turn for ever.
        if demand.context_length > chosen.context_length or stays_until(chosen) <= self._look.now:
            self._look.claim(model.digest, [chosen], chosen.taken, UNSUITED)

    @staticmethod
    def _least_busy(replicas: Sequence[WorkerView]) -> WorkerView:
        return min(replicas, key=lambda replica: (replica.running, replica.last_used))

    def _target(
        self, model: _Model, demand: Demand
    ) -> tuple[int, Footprint | None, Wishes, Placement | None] | None:
        """With what context a model is to be loaded, and where it would best lie.

        With enough for all that wait where that has a place at all, else with enough for this
        request. None where it was refused.
        """
        board = self._look.board
        limits = board.limits(model.digest)
        wishes = Wishes(demand.num_gpu, demand.main_gpu, board.rules.spread, tuple(limits.devices))
        footprint = None
        for context in dict.fromkeys((model.queue.largest, demand.context_length)):
            footprint = board.footprints(model.digest, context)
            if footprint is None:
                return context, None, wishes, None
            if not board.devices:
                return context, None, wishes, None
            if ideal := board.ideal(model.digest, footprint, wishes):
                return context, footprint, wishes, ideal
        assert footprint is not None
        reason = too_large(self._look.devices(), footprint, board.emptied)
        self._look.actions.append(Fail(model.digest, demand.context_length, reason))
        return None

    def _fits(
        self,
        digest: str,
        footprint: Footprint | None,
        wishes: Wishes,
        ideal: Placement | None,
        *,
        slots: bool = True,
    ) -> Callable[[Mapping[str, int]], Placement | None]:
        """What can be placed once so many bytes have come back, if it is nearly what is best.

        That is: with as many layers on no more devices, and unless `slots` is false with half of
        the slots. Of what is being measured nothing is known but that this takes a blank worker.
        """
        if footprint is None:
            nothing = Placement((), 0, 0, {}, True)
            return lambda extra: nothing
        board = self._look.board
        reserved = {
            device
            for claimer, claim in board.claims.items()
            if claimer != digest and self._look.rank(claimer) < self._look.rank(digest)
            for device in claim.devices
        }

        def fits(extra: Mapping[str, int]) -> Placement | None:
            free: Mapping[str, int] = self._look.free()
            if extra or reserved:
                free = dict(free)
                for device, size in extra.items():
                    free[device] = free.get(device, 0) + size
                for device in reserved:
                    free[device] = 0
            placement = place(self._look.devices(), footprint, wishes, free=free, busy=board.busy)
            return placement if placement and is_near(placement, ideal, slots) else None

        return fits

    def _load_elsewhere(self, digest: str, context: int) -> bool:
        """Has a blank worker of another host load it, which takes nothing of this one's."""
        look, board = self._look, self._look.board
        for worker in board.elsewhere:
            if worker not in look.given and digest not in board.workers[worker].lacks:
                look.given.add(worker)
                look.actions.append(LoadModel(worker, digest, context, cores=False))
                board.starved.discard(digest)
                board.unclaim(digest)
                return True
        return False

    def _returns_enough(
        self,
        model: _Model,
        fits: Callable[[Mapping[str, int]], Placement | None],
        blank: bool,
    ) -> bool:
        """Whether what is on its way out is enough; then nobody else has to go for this model."""
        coming = self._look.coming()
        if not coming if blank else self._look.returning <= 0:
            return False
        placement = fits(coming)
        if placement is None:
            return False
        self._look.board.claim(model.digest, [], placement.taken)
        if not blank:
            self._look.returning -= 1
        for device, size in placement.taken.items():
            coming[device] = coming.get(device, 0) - size
        return True
