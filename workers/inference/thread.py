"""The thread in which the engine runs, beside the event loop.

llama.cpp computes without Python's lock, so heartbeats and cancellations go on meanwhile. Commands
come through a queue that is read between steps; what the engine has to say goes to the event loop
in one call per step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ...protocol.codec import MalformedMessage, decode
from ...protocol.errors import Code, PronkError
from ...protocol.messages.embedding import Embed, EmbedBody
from ...protocol.messages.failure import Failure
from ...protocol.messages.fleet import LoadedModel
from ...protocol.messages.generation import Cancel, Failed, Generate, GenerateBody
from ...protocol.messages.placement import Load, Loaded, LoadFailed, Outcome, Released
from ..conversation.prompt import build_prompt
from ..conversation.template import ChatTemplate

if TYPE_CHECKING:
    from .embedding_inputs import InputPreparer
    from .engine import Engine

_log = logging.getLogger(__name__)

SLOTS = 1
"""Requests that the engine takes at a time."""


class EngineThread(threading.Thread):
    """Loads one model, then runs requests on it.

    `post(messages)` is called in this thread with protocol messages: `Loaded` or `LoadFailed` once;
    `Chunk`, `Finished`, `Failed` for a frontend; `Released` as a request's last.
    """

    def __init__(self, load: Load, max_body: int, post: Callable[[list[Any]], None]) -> None:
        super().__init__(name="engine", daemon=True)
        self._load = load
        self._max_body = max_body
        self._post = post
        self._commands: SimpleQueue[Cancel | tuple[Generate | Embed, bytes]] = SimpleQueue()
        self._engine: Engine | None = None
        self._template: ChatTemplate | None = None
        self._inputs: InputPreparer | None = None
        self._prepared = 0

    @property
    def steps(self) -> int:
        """Changes as long as the engine gets anywhere. May be read by any thread."""
        engine = self._engine
        return self._prepared + (engine.steps + engine.embedder.steps if engine else 0)

    def submit(self, header: Generate | Embed, body: bytes) -> None:
        """Hands over a request, when no other one is there. `body` is its second frame."""
        self._commands.put((header, body))

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request before the next step; `Released` confirms it."""
        self._commands.put(cancel)

    def run(self) -> None:
        """The thread's life: ends only where loading fails."""
        try:
            engine = self._loaded()
        except PronkError as error:
            self._post_load_failure(error)
            return
        except Exception:
            _log.exception("loading failed")
            reason = "an error in the server; see its log"
            self._post_load_failure(PronkError(Code.LOAD_FAILED, reason))
            return
        while True:
            while not (engine.busy or engine.embedder.busy) or not self._commands.empty():
                messages = self._obey(engine, self._commands.get())
                if messages:
                    self._post(messages)
            messages = engine.step() + engine.embedder.step()
            if messages:
                self._post(messages)

    def _loaded(self) -> Engine:
        began = time.monotonic_ns()
        model = self._load.model
        # Only now: importing llama_cpp takes hold of devices.
        from .embedding_inputs import InputPreparer
        from .engine import Engine

        engine = Engine(Path(model.weights), self._load.context_length, self._load.threads)
        source = engine.model.chat_template
        if source:
            vocabulary = engine.vocabulary
            self._template = ChatTemplate(source, bos=vocabulary.bos_text, eos=vocabulary.eos_text)
        self._inputs = InputPreparer(
            engine.vocabulary,
            ranks=engine.model.ranks,
            context_length=engine.embedder.context_length,
            pair_template=engine.model.pair_template,
        )
        self._engine = engine
        loaded = LoadedModel(
            model.name,
            model.digest,
            engine.context_length,
            slots=SLOTS,
            size=engine.size,
            size_vram=0,
        )
        self._post([Loaded(loaded, time.monotonic_ns() - began)])
        return engine

    def _post_load_failure(self, error: PronkError) -> None:
        message = f"{self._load.model.name} could not be loaded: {error.message}"
        failure = Failure(Code.LOAD_FAILED, message)
        self._post([LoadFailed(self._load.model.digest, failure)])

    def _obey(self, engine: Engine, command: Cancel | tuple[Generate | Embed, bytes]) -> list[Any]:
        if isinstance(command, Cancel):
            key = (command.request, command.attempt)
            return engine.cancel(*key) + engine.embedder.cancel(*key)
        header, frame = command
        try:
            body = decode(frame, limit=self._max_body)
            if isinstance(header, Embed):
                self._embed(engine, header, body)
                return []
            if not isinstance(body, GenerateBody):
                raise MalformedMessage(f"a body is no {type(body).__name__}")
            if not engine.model.generates:
                raise PronkError(
                    Code.INVALID_REQUEST, "the model turns texts into vectors and writes none"
                )
            context_length = engine.context_for(header)
            prompt = build_prompt(body, self._template, engine.vocabulary, context_length)
            self._prepared += 1
            engine.start(header, body, prompt)
            return []
        except PronkError as error:
            failure = Failure.of(error)
        except MalformedMessage as error:
            _log.error("request %s: malformed body: %s", header.request, error)
            failure = Failure(Code.INTERNAL, "the request was damaged on its way; try again")
        except Exception:
            _log.exception("request %s", header.request)
            failure = Failure(Code.INTERNAL, "the request could not be read; see the server's log")
        return [
            Failed(header.request, header.attempt, failure),
            Released(header.request, header.attempt, Outcome.FAILED, 0),
        ]

    def _embed(self, engine: Engine, header: Embed, body: Any) -> None:
        """Raises `PronkError` when the model cannot do what is asked, or an input is too long."""
        if not isinstance(body, EmbedBody):
            raise MalformedMessage(f"a body is no {type(body).__name__}")
        assert self._inputs
        inputs = self._inputs.prepare(body, header.context_length)
        self._prepared += 1
        engine.embedder.submit(header, inputs)
