"""Changes of the library that are under way, and who waits for each.

A change is a task. Whoever repeats its question every few seconds listens to it; when the last
listener is gone, it is ended, and leaves what it has brought to the disk for the next one. Pulls of
one model are one task with many listeners.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ...protocol.errors import Code, PronkError
from ...protocol.logs import RateLimitedLog
from ...protocol.messages.changes import (
    Changed,
    CopyModel,
    CreateModel,
    DeleteModel,
    Progress,
    PullModel,
    PushModel,
    StopCall,
)
from ...protocol.messages.failure import Failure
from ...protocol.messages.library import CallFailed
from ...protocol.names import parse_name
from .outcomes import Caller, Outcomes
from .progress import Teller
from .report import Report
from .suspects import Suspects

_log = logging.getLogger(__name__)

Order = PullModel | PushModel | CreateModel | CopyModel | DeleteModel
ORDERS = (PullModel, PushModel, CreateModel, CopyModel, DeleteModel)

Run = Callable[[Any, Report], Awaitable[str | None]]
"""Carries out one kind of order. Returns the digest of the model that no name stands for any more,
if there is one. Raises `PronkError`; may be cancelled at any await."""

LEASE_SECONDS = 10.0
"""How long a listener counts that is not heard of."""
MAX_LONG = 32
"""Pulls, pushes and creates at a time; copies and deletes are over at once."""
MAX_SHORT = 128
MAX_LISTENERS = 1024

_LOOK_SECONDS = 1.0
CLOSING_SECONDS = 0.5
"""How long the end of a process waits for changes that were told to end."""
_OPENING: Mapping[type[Any], str] = {
    PullModel: "pulling manifest",
    PushModel: "retrieving manifest",
    CreateModel: "parsing GGUF",
    CopyModel: "copying",
    DeleteModel: "deleting",
}
"""What a listener hears of a change that has said nothing yet, so that it knows that it was heard.
"""


@dataclass(eq=False, slots=True)
class _Change:
    key: Hashable
    order: Order
    teller: Teller
    listeners: dict[Caller, float] = field(default_factory=dict[Caller, float])
    """Until when each of them counts, in monotonic time."""
    task: asyncio.Task[None] | None = None
    ending: bool = False
    """Whether nobody may join it any more: it was told to end, or has its outcome."""


class Changes:
    """Runs changes as `run` says, and tells of them with `post(peer, message)`. Lives on one event
    loop.
    """

    def __init__(
        self,
        run: Mapping[type[Any], Run],
        post: Callable[[str, Any], object],
        suspects: Suspects | None = None,
    ) -> None:
        self._run = run
        self._post = post
        self._suspects = suspects or Suspects()
        self._changes: dict[Hashable, _Change] = {}
        """By what is shared."""
        self._called: dict[Caller, _Change] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes = Outcomes()
        self._noted = RateLimitedLog(_log)
        self._looking: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._closed = False

    def asked(self, peer: str, message: Order | StopCall) -> None:
        """Takes a question, or its end, from a peer."""
        if self._closed:
            return
        caller = peer, message.call
        if isinstance(message, StopCall):
            self._leave(caller)
        elif change := self._called.get(caller):
            change.listeners[caller] = time.monotonic() + LEASE_SECONDS
            change.teller.tell_last(caller)
        elif outcome := self._outcomes.get(caller):
            self._post(peer, outcome)
        else:
            try:
                self._listen(caller, self._change_of(caller, message))
            except PronkError as error:
                self._post(peer, CallFailed(message.call, Failure.of(error)))

    def forget(self, peer: str) -> None:
        """Lets go of a peer that takes no messages."""
        for caller in [caller for caller in self._called if caller[0] == peer]:
            self._leave(caller)

    def close(self) -> None:
        """Ends all changes. Nobody is told: whoever waits asks the next process."""
        self._closed = True
        self._suspects.close()
        if self._looking:
            self._looking.cancel()
        for task in self._tasks:
            task.cancel()

    @property
    def under_way(self) -> int:
        """Changes that have not ended yet."""
        return len(self._tasks)

    async def wait_closed(self) -> None:
        """Waits until they have ended, but not for long: a supervisor does not, either."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSING_SECONDS)

    def _change_of(self, caller: Caller, order: Order) -> _Change:
        """The change that the order asks for, which may be under way. Raises `PronkError`."""
        run = self._run.get(type(order))
        if run is None:
            raise PronkError(Code.NOT_IMPLEMENTED, "this version of Pronk cannot do that")
        if len(self._called) >= MAX_LISTENERS:
            raise _busy()
        key: Hashable = caller
        if isinstance(order, PullModel):
            key = parse_name(order.name).key, order.insecure
        before = self._changes.get(key)
        if before and not before.ending:
            return before
        long = isinstance(order, PullModel | PushModel | CreateModel)
        same = [
            change
            for change in self._changes.values()
            if isinstance(change.order, PullModel | PushModel | CreateModel) == long
        ]
        if len(same) >= (MAX_LONG if long else MAX_SHORT):
            raise _busy()
        change = _Change(key, order, Teller(self._tell, _OPENING[type(order)]))
        self._changes[key] = change
        task = asyncio.create_task(self._carry_out(change, run, before and before.task))
        change.task = task
        self._tasks.add(task)
        # Not in the task itself, which does not even begin when it is ended at once.
        task.add_done_callback(lambda task: self._ended(change, task))
        return change

    def _listen(self, caller: Caller, change: _Change) -> None:
        self._called[caller] = change
        change.listeners[caller] = time.monotonic() + LEASE_SECONDS
        change.teller.join(caller)
        if self._looking is None:
            self._look_later()

    def _leave(self, caller: Caller) -> None:
        change = self._called.pop(caller, None)
        if change is None:
            return
        change.listeners.pop(caller, None)
        change.teller.leave(caller)
        if not change.listeners and change.task:
            change.ending = True
            change.task.cancel()

    async def _carry_out(
        self, change: _Change, run: Run, before: asyncio.Task[None] | None
    ) -> None:
        kind = type(change.order).__name__
        try:
            if before:  # it may have been told to end, and still have its files open
                await asyncio.wait({before})
            _log.info("%s: begun", kind)
            with self._suspects.case(*_identity(change.order)) as case:
                await case.turn()
                unnamed = await run(change.order, case.watching(change.teller))
            change.teller.flush()
            self._end(change, lambda call: Changed(call, unnamed))
            _log.info("%s: done", kind)
        except PronkError as error:
            _log.info("%s: failed: %s", kind, error.message)
            failure = Failure.of(error)
            self._end(change, lambda call: CallFailed(call, failure))
        except asyncio.CancelledError:
            why = "this process ends" if self._closed else "nobody waits for it"
            _log.info("%s: ended, because %s", kind, why)
            raise
        except Exception:
            self._noted.exception(f"{kind} failed")
            failure = Failure(
                Code.INTERNAL, "the model library could not be changed; see the server's log"
            )
            self._end(change, lambda call: CallFailed(call, failure))

    def _ended(self, change: _Change, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        change.teller.close()
        if self._changes.get(change.key) is change:
            del self._changes[change.key]
        if change.listeners:
            # It was cancelled by itself, from within: nobody may wait for it for ever.
            failure = Failure(Code.UNAVAILABLE, "the change was broken off; try again", 1.0)
            self._end(change, lambda call: CallFailed(call, failure))

    def _end(self, change: _Change, answer: Callable[[str], Any]) -> None:
        change.ending = True
        if self._closed:
            return
        for caller in change.listeners:
            self._called.pop(caller, None)
            peer, call = caller
            outcome = answer(call)
            self._outcomes.keep(caller, outcome)
            self._post(peer, outcome)
        change.listeners.clear()

    def _tell(self, caller: Caller, progress: Callable[[str], Progress]) -> None:
        peer, call = caller
        if not self._closed:
            self._post(peer, progress(call))

    def _look_later(self) -> None:
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._looking = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Lets go of listeners that nobody has heard of."""
        self._looking = None
        now = time.monotonic()
        # Of a process that was stopped itself, the questions are still to be read.
        late = now - self._look_at > LEASE_SECONDS / 4
        for caller, change in list(self._called.items()):
            if late:
                change.listeners[caller] = now + LEASE_SECONDS
            elif change.listeners[caller] < now:
                self._leave(caller)
        if self._called:
            self._look_later()


def _identity(order: Order) -> tuple[str, str]:
    """The same for the same order, whoever gives it and however often; and a name for people."""
    fields = {field: getattr(order, field) for field in order.__slots__ if field != "call"}
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    content = orjson.dumps([type(order).__name__, fields], default=repr, option=options)
    name = order.destination if isinstance(order, CopyModel) else order.name
    return hashlib.sha256(content).hexdigest(), f"{type(order).__name__} {name}"


def _busy() -> PronkError:
    return PronkError(
        Code.UNAVAILABLE,
        "as many changes of the model library are under way as there may be at a time; try again "
        "later",
        retry_after=10.0,
    )
