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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...protocol.codec import MalformedMessage
from ...protocol.errors import Code, PronkError
from ...protocol.messages.failure import Failure
from ...protocol.messages.fleet import LoadedModel
from ...protocol.messages.generation import Cancel, Chunk, Failed, Finished, Generate
from ...protocol.messages.placement import Load, Loaded, LoadFailed, Outcome, Released
from ..memory import free_memory
from .batching import GRID
from .capacity import slots_for
from .thread import EngineThread

if TYPE_CHECKING:
    from .engine import Engine, Step
    from .preparation import Preparation, Prepared
    from .sequence import Key

_log = logging.getLogger(__name__)

PREPARATION_THREADS = 2


@dataclass(slots=True)
class _Request:
    """A request from its arrival to its release."""

    prepared: Prepared | None = None
    """None while it is being prepared."""
    outcome: Outcome | None = None
    """How it ended, as far as its reader is concerned; the engine may not know yet."""


class Replica:
    """Loads one model, then serves requests with it. Lives on one event loop.

    `post(messages)` is called there with protocol messages: `Loaded` or `LoadFailed` once; `Chunk`,
    `Finished`, `Failed` for a frontend; `Released` as a request's last.
    """

    def __init__(self, load: Load, max_body: int, post: Callable[[list[Any]], None]) -> None:
        self._load = load
        self._max_body = max_body
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._requests: dict[Key, _Request] = {}
        self._preparation: Preparation | None = None
        self._pool = ThreadPoolExecutor(PREPARATION_THREADS, "prepare")
        self._prepared = 0
        self._began = time.monotonic_ns()
        self._thread = EngineThread(
            self._make_engine,
            lambda engine: self._call(self._on_loaded, engine, time.monotonic_ns()),
            lambda error: self._call(self._on_load_failed, error),
            lambda step: self._call(self._on_step, step),
        )
        self._thread.start()

    @property
    def steps(self) -> int:
        """Changes as long as there is progress."""
        return self._prepared + self._thread.steps

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    def submit(self, header: Generate, frame: bytes) -> None:
        """Takes a request with its `GenerateBody` frame, once the model is loaded."""
        assert self._preparation is not None
        key = (header.request, header.attempt)
        self._requests[key] = _Request()
        work = self._pool.submit(self._preparation.prepare, header, frame)
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

    def _make_engine(self) -> Engine:
        # Only now: importing llama_cpp takes hold of devices.
        from .context import ContextPlan
        from .engine import Engine
        from .footprint import measure
        from .llama import Model
        from .preparation import Preparation

        load = self._load
        model = Model(Path(load.model.weights))
        length = min(load.context_length, model.trained_context or load.context_length)
        footprint = measure(model, load)
        slots = slots_for(load, footprint, length, free_memory())
        plan = ContextPlan(
            slots=slots,
            length=length,
            threads=max(load.threads, 1),
            batch=max(load.batch, slots + GRID),
            cache_type=footprint.cache_type,
            flash_attention=load.flash_attention,
        )
        engine = Engine(model, plan, load.cache_memory)
        self._preparation = Preparation(
            model,
            length,
            can_shift=engine.context.can_shift,
            max_body=self._max_body,
            parameters=load.model.parameters,
        )
        return engine

    # In the event loop

    def _on_loaded(self, engine: Engine, at: int) -> None:
        model, plan = self._load.model, engine.context.plan
        loaded = LoadedModel(
            model.name,
            model.digest,
            plan.length,
            slots=plan.slots,
            size=engine.size,
            size_vram=0,
        )
        self._post([Loaded(loaded, at - self._began)])

    def _on_load_failed(self, error: PronkError) -> None:
        message = f"{self._load.model.name} could not be loaded: {error.message}"
        failure = Failure(Code.LOAD_FAILED, message)
        self._post([LoadFailed(self._load.model.digest, failure)])

    def _on_prepared(self, key: Key, done: Future[Prepared]) -> None:
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
        except Exception:
            _log.exception("request %s", key[0])
            self._refuse(
                key,
                Failure(Code.INTERNAL, "the request could not be read; see the server's log"),
            )
            return
        request.prepared = prepared
        if request.outcome or prepared.answer.reason:
            # Cancelled meanwhile; or its earlier attempt died between its last token and its end.
            prepared.sequence.sampler.close()
            messages = [] if request.outcome else [self._finish(key, request, time.monotonic_ns())]
            self._post([*messages, self._release(key)])
            return
        self._thread.add(prepared.sequence)

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
            assert request.prepared is not None
            answer = request.prepared.answer
            index = len(answer.tokens)
            text = answer.accept(sampled.token)
            told = None if sampled.logprobs is None else [sampled.logprobs]
            messages.append(Chunk(*key, index, [sampled.token], text, told))
            if answer.reason:
                messages.append(self._finish(key, request, step.ended_at))
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

    def _finish(self, key: Key, request: _Request, now: int) -> Finished:
        prepared = request.prepared
        assert prepared is not None
        assert prepared.answer.reason is not None
        request.outcome = Outcome.FINISHED
        accounts = prepared.sequence.accounts
        first_token = accounts.first_token or now
        return Finished(
            *key,
            prepared.answer.reason,
            eval_count=len(prepared.answer.tokens),
            eval_duration=max(now - first_token, 0),
            prompt_eval_count=len(prepared.prompt),
            prompt_eval_duration=first_token - accounts.started,
            cached=accounts.cached,
            context=prepared.context(),
        )

    def _release(self, key: Key) -> Released:
        request = self._requests.pop(key)
        prepared = request.prepared
        made = max(len(prepared.answer.tokens) - prepared.resumed, 0) if prepared else 0
        return Released(*key, request.outcome or Outcome.CANCELLED, made)
