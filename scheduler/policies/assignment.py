"""Which waiting request goes to which worker, which model is loaded where, and which has to go.

Pure: `decide` sees a board and returns actions; nothing here knows sockets, clocks or bodies. Each
action is a request of the policy to the world; the board hears of it when it was carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from .board import Board, Queue
from .eviction import OVERTAKEN, idles_until, make_room, stays_until
from .placement import Placement, Wishes, place, too_large
from .replicas import UNUSED, is_crowded, spare_cores, surplus
from .resources import DeviceView, Footprint
from .routing import route
from .threads import share_cores
from .views import (
    Action,
    Demand,
    Dispatch,
    EndReplica,
    Fail,
    LoadModel,
    SetThreads,
    WorkerState,
    WorkerView,
)

UNSUITED = "a request needs a larger context"

LOOK_PAST = 64
"""Requests that cannot be served which one look passes over in search of some that can."""

MOST_TRIED = 16
"""Models for which one more replica is looked for in one look: to find no place for one among a
thousand devices takes as long as serving some requests."""

HALF = 0.5
"""Part of the slots that a replica would have on an empty host for the sake of which idle ones have
to go."""

NEARLY = 0.9
"""Part of the layers that GPUs would hold if they were empty with which a model is content that
would not fit on them anyhow. One that would fit waits for room: a few layers on the CPU make all of
it slow."""


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
      that has read most of its prompt where there are several. A suspect goes where no other is.
    - A model without a replica that suits is loaded by a blank worker, where there is memory. Where
      there is none, or no worker, the idle replicas used least recently that nobody waits for make
      room; streams are never ended. Its own idle one goes first, where it is too small.
    - Where others wait for all of them, a request that has waited for `OVERTAKEN` has some make
      room nevertheless, as soon as they are idle: they get nothing new until then. Only those that
      have stayed for a while: exchanging models all the time serves nobody.
    - A model that would not even fit alone is refused with the numbers.
    - A model whose queue stays full gets one more replica on a device where it has none.
    """
    look = _Look(board, now)
    if everything:
        board.touch()
    look.serve(board.take_changed())
    if everything:
        look.stand()
        look.grow()
        look.shrink()
    look.share_cores(everything)
    return look.actions


def _is_near(placement: Placement, ideal: Placement | None, slots: bool = True) -> bool:
    """Whether a placement is nearly as good as the one that an empty host would have."""
    if ideal is None:
        return True
    least = ideal.layers if not ideal.cores else NEARLY * ideal.layers
    return (
        placement.layers >= least
        and (len(placement.shares) <= len(ideal.shares) or not placement.shares)
        and (not slots or placement.slots >= HALF * ideal.slots)
    )


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


class _Look:
    """One look at the board: what was decided in it counts for what is decided next."""

    def __init__(self, board: Board, now: float) -> None:
        self.actions: list[Action] = []
        self._board = board
        self._now = now
        self._slots: dict[str, int] = {}
        """Free slots of each replica that was looked at."""
        self._suspects: set[str] = set()
        """Replicas that a suspect was sent to."""
        self._given: set[str] = set()
        """Workers that something was decided about."""
        self._blank_now: list[str] | None = None
        self._returning = len(board.ending) + board.departed
        self._free_now: dict[str, int] | None = None
        self._coming_now: dict[str, int] | None = None
        self._idle_now: list[WorkerView] | None = None
        self._ranks: dict[str, int] | None = None
        self._devices_now: list[DeviceView] | None = None

    # Requests to replicas

    def serve(self, digests: set[str]) -> None:
        """Looks at these models' requests, in the order of all requests."""
        board = self._board
        for digest in digests:
            self._end_claimed(digest)
        ordered = sorted(digests, key=self._rank) if len(digests) > 1 else digests
        for digest in ordered:
            board.starved.discard(digest)
            model = _Model(digest, board.queues[digest], board)
            for demand in board.waiting_for(digest):
                if not self._serve_one(model, demand) or model.passed >= LOOK_PAST:
                    break

    def _rank(self, digest: str) -> int:
        """The place of a model in the order of turns; nobody waits for those behind all others."""
        if self._ranks is None:
            self._ranks = self._board.ranks()
        return self._ranks.get(digest, len(self._ranks))

    def _end_claimed(self, digest: str) -> None:
        board = self._board
        claim = board.claims.get(digest)
        if claim is None:
            return
        for worker in sorted(claim.workers):
            if worker in board.idle and worker not in self._given:
                self._end(board.workers[worker], claim.reason)

    def _serve_one(self, model: _Model, demand: Demand) -> bool:
        """Does what can be done for a request; says whether later ones have a chance."""
        suiting = [replica for replica in model.ready if self._suits(replica, demand)]
        if not suiting:
            return self._start(model, demand)
        if demand.preload:
            self.actions.append(Dispatch(demand.id, suiting[0].id))
            return True
        if demand.suspect:
            suiting = [
                replica
                for replica in suiting
                if not replica.suspects and replica.id not in self._suspects
            ]
        if not sum(max(0, self._slots_of(replica)) for replica in suiting):
            model.passed += 1
            return any(self._slots_of(replica) > 0 for replica in model.ready)
        among = [replica.id for replica in suiting] if len(suiting) > 1 else []
        matched = self._board.prefixes.matched(demand.prefix, among)
        chosen = route(demand, suiting, self._slots, matched, self._now - demand.since)
        if chosen is None:
            model.passed += 1
            return True
        self._slots[chosen.id] -= 1
        self._given.add(chosen.id)
        if demand.suspect:
            self._suspects.add(chosen.id)
        self.actions.append(Dispatch(demand.id, chosen.id))
        return True

    def _slots_of(self, replica: WorkerView) -> int:
        return self._slots.setdefault(replica.id, replica.free_slots)

    def _suits(self, replica: WorkerView, demand: Demand) -> bool:
        if demand.context_length > replica.context_length:
            return False
        wanted = demand.num_gpu
        if wanted is None or wanted == replica.num_gpu or not self._board.has_gpu:
            return True
        layers = min(wanted, replica.all_layers) if replica.all_layers else wanted
        return layers == replica.layers

    # Models to workers

    def _start(self, model: _Model, demand: Demand) -> bool:
        """Has a replica made that suits; says whether the model's later ones have a chance."""
        others = bool(model.ready)
        # Of those that no replica suits, the one that came first counts.
        since = demand.since if others else model.queue.first.since
        patient = self._now - since < OVERTAKEN
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
        board = self._board
        most = max(1, board.limits(model.digest).most)
        fits = self._fits(model.digest, footprint, wishes, ideal)
        blank = self._has_blank(model.digest)
        if blank and footprint is None:
            board.starved.add(model.digest)  # until it is measured
            return others
        if blank and footprint and model.replicas < most and (placement := fits({})):
            self._load(model.digest, demand, context, footprint, placement)
            return others
        board.starved.add(model.digest)
        if own := [replica for replica in model.ready if self._untouched(replica)]:
            chosen = min(own, key=lambda replica: (replica.context_length, replica.last_used))
            self._end(chosen, UNSUITED)
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
        if found := make_room(self._idle_of_others(model.digest), fits, worker=not blank):
            reason = "another model needs its worker"
            self._claim(model.digest, found[0], found[1].taken, reason)
            return others
        modestly = self._fits(model.digest, footprint, wishes, ideal, slots=False)
        if blank and footprint and model.replicas < most and (placement := modestly({})):
            self._load(model.digest, demand, context, footprint, placement)
        elif others:
            # Its own place is the first that it gets for a larger replica.
            self._claim_own(model, demand)
        elif not patient:
            candidates = self._idle_of_others(model.digest) + self._movable(model.digest)
            if found := make_room(candidates, modestly, worker=not blank):
                self._claim(model.digest, found[0], found[1].taken)
        return others

    def _suits_later(self, replica: WorkerView, demand: Demand) -> bool:
        return demand.context_length <= replica.context_length

    def _has_blank(self, digest: str) -> bool:
        """Whether there is a blank worker that no model waits for whose turn comes earlier."""
        board = self._board
        earlier = sum(
            1
            for claimer in board.claims
            if claimer != digest and (not digest or self._rank(claimer) < self._rank(digest))
        )
        return len(self._blank) > earlier

    @property
    def _blank(self) -> list[str]:
        if self._blank_now is None:
            self._blank_now = list(self._board.blank)
        return self._blank_now

    def _claim_own(self, model: _Model, demand: Demand) -> None:
        chosen = self._least_busy(model.ready)
        # A larger context serves the others, too; where only the layers are others, requests could
        # have it loaded in turn for ever.
        if demand.context_length > chosen.context_length or stays_until(chosen) <= self._now:
            self._claim(model.digest, [chosen], chosen.taken, UNSUITED)

    def _untouched(self, replica: WorkerView) -> bool:
        return not replica.running and replica.id not in self._given

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
        board = self._board
        limits = board.limits(model.digest)
        wishes = Wishes(demand.num_gpu, demand.main_gpu, board.rules.spread, limits.devices)
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
        reason = too_large(self._devices(), footprint, board.emptied)
        self.actions.append(Fail(model.digest, demand.context_length, reason))
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
        board = self._board
        reserved = {
            device
            for claimer, claim in board.claims.items()
            if claimer != digest and self._rank(claimer) < self._rank(digest)
            for device in claim.devices
        }

        def fits(extra: Mapping[str, int]) -> Placement | None:
            free: Mapping[str, int] = self._free()
            if extra or reserved:
                free = dict(free)
                for device, size in extra.items():
                    free[device] = free.get(device, 0) + size
                for device in reserved:
                    free[device] = 0
            placement = place(self._devices(), footprint, wishes, free=free, busy=board.busy)
            return placement if placement and _is_near(placement, ideal, slots) else None

        return fits

    def _load(
        self,
        digest: str,
        demand: Demand | None,
        context: int,
        footprint: Footprint,
        placement: Placement,
    ) -> None:
        board = self._board
        worker = self._blank.pop(0)
        self._given.add(worker)
        free = self._free()
        for device, size in placement.taken.items():
            free[device] = free.get(device, 0) - size
        most = self._threads_of(digest)
        threads = share_cores(board.rules.cores, self._busy_on_cores() | {worker: most})[worker]
        self.actions.append(
            LoadModel(
                worker,
                digest,
                context,
                placement.shares,
                placement.layers,
                placement.slots if placement.slots < footprint.slots else 0,
                threads if placement.cores else 1,
                demand.num_gpu if demand else None,
                footprint.layers,
                placement.taken,
                placement.cores,
            )
        )
        board.starved.discard(digest)
        board.unclaim(digest)

    def _end(self, replica: WorkerView, reason: str) -> None:
        self._given.add(replica.id)
        self._slots[replica.id] = 0
        self.actions.append(EndReplica(replica.id, reason))
        if self._idle_now is not None and replica in self._idle_now:
            self._idle_now.remove(replica)

    def _claim(
        self,
        digest: str,
        replicas: Sequence[WorkerView],
        devices: Iterable[str],
        reason: str = "a model that has waited needs its worker",
    ) -> None:
        """Ends these replicas for the sake of a model, those with requests once they are idle."""
        self._board.claim(digest, [replica.id for replica in replicas], devices, reason)
        for replica in replicas:
            self._slots[replica.id] = 0
            if self._untouched(replica):
                self._end(replica, reason)
            elif self._idle_now is not None and replica in self._idle_now:
                self._idle_now.remove(replica)

    def _returns_enough(
        self,
        model: _Model,
        fits: Callable[[Mapping[str, int]], Placement | None],
        blank: bool,
    ) -> bool:
        """Whether what is on its way out is enough; then nobody else has to go for this model."""
        coming = self._coming()
        if not coming if blank else self._returning <= 0:
            return False
        placement = fits(coming)
        if placement is None:
            return False
        self._board.claim(model.digest, [], placement.taken)
        if not blank:
            self._returning -= 1
        for device, size in placement.taken.items():
            coming[device] = coming.get(device, 0) - size
        return True

    # What there is

    def _devices(self) -> list[DeviceView]:
        if self._devices_now is None:
            self._devices_now = list(self._board.devices.values())
        return self._devices_now

    def _free(self) -> dict[str, int]:
        if self._free_now is None:
            self._free_now = {d.name: d.free for d in self._devices()}
        return self._free_now

    def _coming(self) -> dict[str, int]:
        """Bytes on each device that come back when those that are ending have ended."""
        if self._coming_now is None:
            coming: dict[str, int] = {}
            for worker in self._board.ending:
                for device, size in self._board.workers[worker].taken.items():
                    coming[device] = coming.get(device, 0) + size
            self._coming_now = coming
        return self._coming_now

    def _idle_of_others(self, digest: str) -> list[WorkerView]:
        """Idle replicas that nobody waits for, the least recently used first."""
        board = self._board
        if self._idle_now is None:
            views = [board.workers[worker] for worker in board.idle]
            self._idle_now = sorted(
                (
                    view
                    for view in views
                    if view.digest not in board.queues
                    and view.id not in board.claimed
                    and idles_until(view) <= self._now
                    and self._may_go(view)
                ),
                key=lambda view: view.last_used,
            )
        return [
            view for view in self._idle_now if view.digest != digest and view.id not in self._given
        ]

    def _may_go(self, replica: WorkerView) -> bool:
        """Whether the operator has not said that it stays."""
        least = self._board.limits(replica.digest or "").min_replicas
        return not least or len(self._board.replicas.get(replica.digest or "", {})) > least

    def _movable(self, digest: str) -> list[WorkerView]:
        """Replicas that others wait for and that may give way to this request, the best one first.

        Of those models that have others, any; of the others those for which nobody has waited
        longer than this request.
        """
        board = self._board
        movable: list[WorkerView] = []
        for other, replicas in board.replicas.items():
            if other == digest:
                continue
            queue = board.queues.get(other)
            ready = [
                view
                for view in replicas.values()
                if view.state is WorkerState.READY and view.id not in board.claimed
            ]
            if queue is not None and self._rank(other) < self._rank(digest):
                ready = ready[1:] if len(ready) > 1 else []
            elif queue is None:
                ready = [view for view in ready if not self._untouched(view)]
            movable.extend(
                view for view in ready if stays_until(view) <= self._now and self._may_go(view)
            )
        return sorted(
            movable,
            key=lambda view: (
                len(board.replicas[view.digest or ""]) == 1,
                not self._untouched(view),
                view.running + view.free_slots - self._slots_of(view),
                view.last_used,
            ),
        )

    # Replicas beyond the first

    def stand(self) -> None:
        """Loads what is to be there although nobody asks for it, where there is room."""
        board = self._board
        for digest, context in list(board.standing.items()):
            there = len(board.replicas.get(digest, {}))
            least = board.limits(digest).min_replicas
            if there >= max(1, least):
                if not least:
                    del board.standing[digest]
                continue
            if digest in board.queues and not there:
                continue  # whoever waits for it has it loaded
            self._one_more(digest, context, there)

    def grow(self) -> None:
        """Gives some of the models whose queue stays full one more replica each."""
        board = self._board
        tried = 0
        for digest in board.ranks():
            queue = board.queues.get(digest)
            if queue is None or tried >= MOST_TRIED:
                continue
            replicas = board.replicas.get(digest, {})
            ready = [view for view in replicas.values() if view.state is WorkerState.READY]
            if (
                not queue.requests
                or len(ready) < len(replicas)
                or len(replicas) >= board.limits(digest).most
                or digest in board.claims
                or any(view.id in board.claimed for view in ready)
                or any(self._slots_of(view) > 0 for view in ready)
                or not is_crowded(queue.first.since, queue.requests, ready, self._now)
            ):
                continue
            context = max(queue.largest, *(view.context_length for view in ready))
            tried += 1
            self._one_more(digest, context, len(replicas))

    def _one_more(self, digest: str, context: int, there: int) -> None:
        """One more replica beside those that are there, where it can be had without harm."""
        board = self._board
        footprint = board.footprints(digest, context)
        if footprint is None or not board.devices:
            return
        holders = board.replicas.get(digest, {}).values()
        # Where others compute, it would only take their time.
        avoid = frozenset(name for view in holders for name in view.taken) | {
            name for name, replicas in board.busy.items() if replicas
        }
        wishes = Wishes(None, None, False, board.limits(digest).devices)
        ideal = board.ideal(digest, footprint, wishes)
        if ideal is None:
            return
        elsewhere = Wishes(None, None, False, wishes.only, avoid)
        reserved = {device for claim in board.claims.values() for device in claim.devices}

        def fits(extra: Mapping[str, int]) -> Placement | None:
            free = dict(self._free())
            for device, size in extra.items():
                free[device] = free.get(device, 0) + size
            for device in reserved:
                free[device] = 0
            placement = place(self._devices(), footprint, elsewhere, free=free, busy=board.busy)
            if placement is None or not _is_near(placement, ideal):
                return None
            if there and not placement.shares and not self._has_spare_cores(digest):
                return None
            return placement

        unused = [
            view
            for view in self._idle_of_others(digest)
            if self._now - view.last_used >= UNUSED and digest in board.queues
        ]
        blank = self._has_blank("")
        if blank and (placement := fits({})):
            self._load(digest, None, context, footprint, placement)
        elif not board.ending and (found := make_room(unused, fits, worker=not blank)):
            for replica in found[0]:
                self._end(replica, "a busy model needs its place for one more replica")

    def _has_spare_cores(self, digest: str) -> bool:
        board = self._board
        computing = [
            view
            for worker in board.computing
            if (view := board.workers[worker]).running or self._now - view.last_used < UNUSED
        ]
        loading = [
            view
            for replicas in board.replicas.values()
            for view in replicas.values()
            if view.state is WorkerState.LOADING and view.cores
        ]
        cores = board.rules.cores
        needed = min(self._threads_of(digest), cores)
        return spare_cores(cores, [*computing, *loading]) >= needed

    def shrink(self) -> None:
        """Ends replicas that are one too many."""
        board = self._board
        for digest, replicas in board.replicas.items():
            if len(replicas) < 2 or digest in board.queues:
                continue
            ready = [
                view
                for view in replicas.values()
                if view.state is WorkerState.READY and view.id not in self._given
            ]
            if one := surplus(ready, board.limits(digest).min_replicas, self._now):
                self._end(one, "its model has more replicas than it needs")

    # Cores

    def _threads_of(self, digest: str) -> int:
        return min(self._board.rules.most_threads, self._board.most_threads(digest))

    def _busy_on_cores(self) -> dict[str, int]:
        board = self._board
        return {
            worker: view.most_threads
            for worker in board.computing
            if (view := board.workers[worker]).running or worker in self._slots_used()
        }

    def _slots_used(self) -> set[str]:
        return {action.worker for action in self.actions if isinstance(action, Dispatch)}

    def share_cores(self, now_or_later: bool) -> None:
        """Gives those that compute on the processor their threads.

        Whoever has too many gives them back at once. Whoever may have more gets them when it begins
        to work, or else about a second later: so a pause of a moment changes nothing.
        """
        board = self._board
        used = self._slots_used() & board.computing.keys()
        if not (now_or_later or used or board.cores_changed):
            return
        board.cores_changed = False
        counts = share_cores(board.rules.cores, self._busy_on_cores())
        changes: list[Action] = []
        for worker, threads in counts.items():
            view = board.workers[worker]
            begins = not view.running
            if threads < view.threads or (threads > view.threads and (now_or_later or begins)):
                changes.append(SetThreads(worker, threads))
        # First of all, so that the next step already has them.
        self.actions[:0] = changes
