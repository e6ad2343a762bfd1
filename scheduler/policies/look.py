"""One look at the board: what was decided in it counts for what is decided next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .board import Board
from .eviction import idles_until, stays_until
from .placement import Placement
from .resources import DeviceView, Footprint
from .threads import share_cores
from .views import Action, Demand, Dispatch, EndReplica, LoadModel, WorkerState, WorkerView


class Look:
    """The actions of one look, and what they leave of workers, slots and memory."""

    def __init__(self, board: Board, now: float) -> None:
        self.actions: list[Action] = []
        self.board = board
        self.now = now
        self.slots: dict[str, int] = {}
        """Free slots of each replica that was looked at."""
        self.suspects: set[str] = set()
        """Replicas that a suspect was sent to."""
        self.given: set[str] = set()
        """Workers that something was decided about."""
        self._blank_now: list[str] | None = None
        self.returning = len(board.ending) + board.departed
        self._free_now: dict[str, int] | None = None
        self._coming_now: dict[str, int] | None = None
        self._idle_now: list[WorkerView] | None = None
        self._ranks: dict[str, int] | None = None
        self._devices_now: list[DeviceView] | None = None

    def rank(self, digest: str) -> int:
        """The place of a model in the order of turns; nobody waits for those behind all others."""
        if self._ranks is None:
            self._ranks = self.board.ranks()
        return self._ranks.get(digest, len(self._ranks))

    def slots_of(self, replica: WorkerView) -> int:
        """Free slots of a replica, less those that were given away."""
        return self.slots.setdefault(replica.id, replica.free_slots)

    def has_blank(self, digest: str) -> bool:
        """Whether there is a blank worker that no model waits for whose turn comes earlier."""
        board = self.board
        earlier = sum(
            1
            for claimer in board.claims
            if claimer != digest and (not digest or self.rank(claimer) < self.rank(digest))
        )
        return len(self.blank) > earlier

    @property
    def blank(self) -> list[str]:
        """Workers that nothing was decided about and that have no model."""
        if self._blank_now is None:
            self._blank_now = list(self.board.blank)
        return self._blank_now

    def untouched(self, replica: WorkerView) -> bool:
        """Whether a replica has nothing to do, and nothing was decided about it."""
        return not replica.running and replica.id not in self.given

    def load(
        self,
        digest: str,
        demand: Demand | None,
        context: int,
        footprint: Footprint,
        placement: Placement,
    ) -> None:
        """Has a blank worker load a model."""
        board = self.board
        worker = self.blank.pop(0)
        self.given.add(worker)
        free = self.free()
        for device, size in placement.taken.items():
            free[device] = free.get(device, 0) - size
        most = self.threads_of(digest)
        threads = share_cores(board.rules.cores, self.busy_on_cores() | {worker: most})[worker]
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

    def end(self, replica: WorkerView, reason: str) -> None:
        """Has an idle replica exit."""
        self.given.add(replica.id)
        self.slots[replica.id] = 0
        self.actions.append(EndReplica(replica.id, reason))
        if self._idle_now is not None and replica in self._idle_now:
            self._idle_now.remove(replica)

    def claim(
        self,
        digest: str,
        replicas: Sequence[WorkerView],
        devices: Iterable[str],
        reason: str = "a model that has waited needs its worker",
    ) -> None:
        """Ends these replicas for the sake of a model, those with requests once they are idle."""
        self.board.claim(digest, [replica.id for replica in replicas], devices, reason)
        for replica in replicas:
            self.slots[replica.id] = 0
            if self.untouched(replica):
                self.end(replica, reason)
            elif self._idle_now is not None and replica in self._idle_now:
                self._idle_now.remove(replica)

    def devices(self) -> list[DeviceView]:
        """All devices."""
        if self._devices_now is None:
            self._devices_now = list(self.board.devices.values())
        return self._devices_now

    def free(self) -> dict[str, int]:
        """Bytes on each device that a new replica may take."""
        if self._free_now is None:
            self._free_now = {d.name: d.free for d in self.devices()}
        return self._free_now

    def coming(self) -> dict[str, int]:
        """Bytes on each device that come back when those that are ending have ended."""
        if self._coming_now is None:
            coming: dict[str, int] = {}
            for worker in self.board.ending:
                for device, size in self.board.workers[worker].taken.items():
                    coming[device] = coming.get(device, 0) + size
            self._coming_now = coming
        return self._coming_now

    def idle_of_others(self, digest: str) -> list[WorkerView]:
        """Idle replicas that nobody waits for, the least recently used first."""
        board = self.board
        if self._idle_now is None:
            views = [board.workers[worker] for worker in board.idle]
            self._idle_now = sorted(
                (
                    view
                    for view in views
                    if view.digest not in board.queues
                    and view.id not in board.claimed
                    and idles_until(view) <= self.now
                    and self.may_go(view)
                ),
                key=lambda view: view.last_used,
            )
        return [
            view for view in self._idle_now if view.digest != digest and view.id not in self.given
        ]

    def may_go(self, replica: WorkerView) -> bool:
        """Whether the operator has not said that it stays."""
        least = self.board.limits(replica.digest or "").min_replicas
        return not least or len(self.board.replicas.get(replica.digest or "", {})) > least

    def movable(self, digest: str) -> list[WorkerView]:
        """Replicas that others wait for and that may give way to this request, the best one first.

        Of those models that have others, any; of the others those for which nobody has waited
        longer than this request.
        """
        board = self.board
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
            if queue is not None and self.rank(other) < self.rank(digest):
                ready = ready[1:] if len(ready) > 1 else []
            elif queue is None:
                ready = [view for view in ready if not self.untouched(view)]
            movable.extend(
                view for view in ready if stays_until(view) <= self.now and self.may_go(view)
            )
        return sorted(
            movable,
            key=lambda view: (
                len(board.replicas[view.digest or ""]) == 1,
                not self.untouched(view),
                view.running + view.free_slots - self.slots_of(view),
                view.last_used,
            ),
        )

    def threads_of(self, digest: str) -> int:
        """Threads that a replica of the model may have."""
        return min(self.board.rules.most_threads, self.board.most_threads(digest))

    def busy_on_cores(self) -> dict[str, int]:
        """Most threads of each replica that computes on the cores now."""
        board = self.board
        return {
            worker: view.most_threads
            for worker in board.computing
            if (view := board.workers[worker]).running or worker in self.slots_used()
        }

    def slots_used(self) -> set[str]:
        """Workers that were sent something."""
        return {action.worker for action in self.actions if isinstance(action, Dispatch)}
