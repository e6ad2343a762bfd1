"""A loaded model as the worker's event loop sees it: requests in, messages out.

A request is prepared in a thread, handed to the engine's thread, and its tokens come back step by
step. What follows from a token — text, stop texts, the message — is made here, in the event loop,
while the engine computes the next step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.codec import MalformedMessage
from ...protocol.errors import Code, PronkError
from ...protocol.host import own_memory, usable_threads
from ...protocol.lifecycle import Lifecycle
from ...protocol.messages.embedding import Embed
from ...protocol.messages.failure import Failure
from ...protocol.messages.fleet import LoadedModel
from ...protocol.messages.generation import Cancel, Failed, Finished, Generate
from ...protocol.messages.placement import (
    Load,
    Loaded,
    LoadFailed,
    Outcome,
    Released,
    SetThreads,
)
from ..conversation.coprocess import Coprocesses
from ..conversation.renders import LOOP, lastingly
from ..parts import read_parts
from ..visibility import choose_devices
from .capacity import MOST_AUTOMATIC
from .messages import WithNumbers
from .prepared import Prepared
from .thread import Computers, EmbedJob, EngineThread

if TYPE_CHECKING:
    from .engine import Step
    from .sequence import Key
    from .sight import Sight

_log = logging.getLogger(__name__)


class ReplicaState(Enum):
    """Where a replica is in its life, which its process ends."""

    LOADING = "loading"
    READY = "ready"
    """It takes requests."""
    FAILED = "failed"
    """Its model could not be loaded."""


_LIFE = Lifecycle(
    "replica",
    {
        ReplicaState.LOADING: {ReplicaState.READY, ReplicaState.FAILED},
        ReplicaState.READY: set[ReplicaState](),
        ReplicaState.FAILED: set[ReplicaState](),
    },
    _log,
    logging.DEBUG,
)


_Prepare = Callable[[Generate | Embed, bytes, Callable[[], bool]], Prepared | EmbedJob]


@dataclass(slots=True)
class _Request:
    """A request from its arrival to its release."""

    prepared: Prepared | EmbedJob | None = None
    """None while it is being prepared."""
    outcome: Outcome | None = None
    """How it ended, as far as its reader is concerned; the engine may not know yet."""


class Replica:
    """Loads one model, then serves requests with it. Lives on one event loop.

    `post(messages)` is called there with protocol messages: `Loaded` or `LoadFailed` once; `Chunk`,
    `Finished`, `Failed` for a frontend; `Released` as a request's last.
    """

    def __init__(self, load: Load, max_body: int, post: Callable[[list[Any]], object]) -> None:
        self.state = ReplicaState.LOADING
        self._load = load
        self._max_body = max_body
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._requests: dict[Key, _Request] = {}
        self._prepare: _Prepare | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._sight: Sight | None = None
        self._prepared = 0
        self._began = time.monotonic_ns()
        self._before = own_memory()
        self._thread = EngineThread(
            self._load_model,
            lambda computers: self._call(self._on_loaded, computers, time.monotonic_ns()),
            lambda error: self._call(self._on_load_failed, error),
            lambda step: self._call(self._on_step, step),
            lambda messages: self._call(self._on_messages, messages),
        )
        self._thread.start()

    @property
    def steps(self) -> int:
        """Changes as long as there is progress."""
        sight = self._sight
        looked = sight.opened + sight.encoded if sight else 0
        return self._prepared + looked + self._thread.steps

    def set_threads(self, command: SetThreads) -> None:
        """Has the next step, and all after it, computed with another number of threads."""
        self._thread.set_threads(command)

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    def submit(self, header: Generate | Embed, frame: bytes) -> None:
        """Takes a request with its body. Only for a replica that is `READY`."""
        assert self._prepare
        assert self._pool
        key = (header.request, header.attempt)
        request = self._requests[key] = _Request()
        work = self._pool.submit(self._prepare, header, frame, lambda: request.outcome is None)
        work.add_done_callback(lambda done: self._call(self._on_prepared, key, done))

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request before the next step; `Released` confirms it."""
        key = (cancel.request, cancel.attempt)
        request = self._requests.get(key)
        if request is None or request.outcome:
            return
        request.outcome = Outcome.CANCELLED
        if request.prepared:
            self._thread.cancel(key)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Has something done in the event loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed: the process is exiting
            self._loop.call_soon_threadsafe(function, *arguments)

    # Loading, in the engine's thread

    def _load_model(self) -> Computers:
        # Only now: importing llama_cpp takes hold of devices.
        load = self._load
        choose_devices(load.shares)
        processes = Coprocesses(LOOP)  # it starts while the model is loaded
        from .embedder import Embedder
        from .engine import Engine
        from .llama import Model
        from .offload import offload_of
        from .plan import context_length, plan_context
        from .preparation import Preparation
        from .projector import load_sight

        parts = read_parts(load.model.parts)
        model = Model(Path(load.model.weights), offload_of(load), adapters=parts.adapters)
        length = context_length(model, load)
        embedder = Embedder(model, length, load.threads)
        engine = None
        # Before the slots, whose number depends on the memory that is left.
        # Half of the threads: streams go on beside it.
        eyes = -(-usable_threads(load.threads) // 2)
        self._sight = sight = load_sight(model, parts.projectors, eyes)
        if model.generates:
            engine = Engine(model, plan_context(model, load), load.cache_memory)
        self._prepare = Preparation(
            model,
            length,
            can_shift=engine is not None and engine.context.can_shift,
            max_body=self._max_body,
            parameters=load.model.parameters,
            parts=parts,
            renderer=load.model.renderer,
            analyses=load.model.analyses,
            sight=sight,
            batch=engine.context.plan.batch if engine else load.batch,
            render=lambda source: lastingly(source, processes),
        ).prepare
        if not processes.begun:
            processes.close()
        return Computers(engine, embedder, model)

    # In the event loop

    def _on_loaded(self, computers: Computers, at: int) -> None:
        from .llama import native_log
        from .native_log import HOST
        from .placed import placed

        model, engine = self._load.model, computers.engine
        where = placed(native_log, computers.model.offload, computers.model.layers)
        slots = engine.context.plan.slots if engine else self._load.parallel or MOST_AUTOMATIC
        # One for each request that can be here: none waits while another's schema is compiled.
        self._pool = ThreadPoolExecutor(slots, "prepare")
        loaded = LoadedModel(
            model.name,
            model.digest,
            computers.embedder.context_length,
            slots=slots,
            size=sum(part.size for part in where),
            size_vram=sum(part.size for part in where if part.device != HOST),
            placed=where,
            resident=max(0, own_memory() - self._before),
        )
        self.state = _LIFE.step(model.name, self.state, ReplicaState.READY)
        self._post([Loaded(loaded, at - self._began)])

    def _on_load_failed(self, error: PronkError) -> None:
        self.state = _LIFE.step(self._load.model.name, self.state, ReplicaState.FAILED)
        message = f"{self._load.model.name} could not be loaded: {error.message}"
        failure = Failure(Code.LOAD_FAILED, message)
        self._post([LoadFailed(self._load.model.digest, failure)])

    def _on_prepared(self, key: Key, done: Future[Prepared | EmbedJob]) -> None:
        self._prepared += 1
        request = self._requests[key]
        try:
            prepared = done.result()
        except PronkError as error:
            self._refuse(key, Failure.of(error))
            return
        except MalformedMessage as error:
            _log.error("request %s: malformed body: %s", key[0], error)
            self._refuse(
                key, Failure(Code.INTERNAL, "the request was damaged on its way; try again")
            )
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in a library written in Rust is no Exception
            _log.exception("request %s", key[0])
            self._refuse(
                key,
                Failure(Code.INTERNAL, "the request could not be read; see the server's log"),
            )
            return
        request.prepared = prepared
        finished = isinstance(prepared, Prepared) and prepared.answer.reason
        pending: list[Any] = []
        if isinstance(prepared, Prepared) and not request.outcome:
            pending += prepared.answer.pending_chunks(key)
        if pending:
            self._post(pending)
        if not (request.outcome or finished):
            self._thread.add(prepared if isinstance(prepared, EmbedJob) else prepared.sequence)
            return
        # Cancelled meanwhile; or its earlier attempt died between its last token and its end.
        messages: list[Any] = []
        if isinstance(prepared, Prepared):
            prepared.sequence.sampler.close()
            if not request.outcome:
                messages.append(self._finish(request, prepared, time.monotonic_ns()))
        self._post([*messages, self._release(key)])

    def _refuse(self, key: Key, failure: Failure) -> None:
        """Ends a request that could not be prepared."""
        request = self._requests.pop(key)
        outcome = request.outcome or Outcome.FAILED
        messages = [] if request.outcome else [Failed(*key, failure)]
        self._post([*messages, Released(*key, outcome, 0)])

    def _on_step(self, step: Step) -> None:
        messages: list[Any] = []
        left = {key for key, _ in step.left}
        for sampled in step.sampled:
            key = sampled.key
            request = self._requests[key]
            if request.outcome:
                continue  # computed before the engine knew
            assert isinstance(request.prepared, Prepared)
            answer = request.prepared.answer
            told = None
            if request.prepared.sequence.logprobs is not None:
                told = [sampled.logprobs] if sampled.logprobs else []
            messages += answer.chunks(key, sampled.token, told)
            if answer.reason:
                messages.append(self._finish(request, request.prepared, step.ended_at))
                if key not in left:  # the engine knows nothing of stop texts
                    self._thread.cancel(key)
        for key, failure in step.left:
            request = self._requests[key]
            if failure and not request.outcome:
                request.outcome = Outcome.FAILED
                messages.append(Failed(*key, failure))
            messages.append(self._release(key))
        if messages:
            self._post(messages)

    def _on_messages(self, messages: list[Any]) -> None:
        """Passes on what the embedder says, as far as anybody still wants to hear it."""
        wanted: list[Any] = []
        for message in messages:
            subject = message.message if isinstance(message, WithNumbers) else message
            key = (subject.request, subject.attempt)
            if isinstance(message, Released):
                cancelled = self._requests.pop(key).outcome
                wanted.append(replace(message, outcome=cancelled or message.outcome))
            elif not self._requests[key].outcome:
                wanted.append(message)
        self._post(wanted)

    def _finish(self, request: _Request, prepared: Prepared, now: int) -> Finished:
        answer, accounts = prepared.answer, prepared.sequence.accounts
        assert answer.reason is not None
        request.outcome = Outcome.FINISHED
        first_token = accounts.first_token or now
        return Finished(
            *prepared.sequence.key,
            answer.reason,
            eval_count=len(answer.tokens),
            eval_duration=max(now - first_token, 0),
            prompt_eval_count=len(prepared.prompt),
            prompt_eval_duration=first_token - accounts.started,
            cached=accounts.cached,
            context=prepared.context(),
        )

    def _release(self, key: Key) -> Released:
        request = self._requests.pop(key)
        made = request.prepared.made if isinstance(request.prepared, Prepared) else 0
        return Released(*key, request.outcome or Outcome.CANCELLED, made)
