"""An engine without a process around it: requests in, texts out, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pronk.protocol.codec import encode
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
)
from pronk.workers.conversation.opening import NO_OPENING, Opening
from pronk.workers.inference.context import ContextPlan
from pronk.workers.inference.engine import Engine, Step
from pronk.workers.inference.llama import Model
from pronk.workers.inference.preparation import Preparation, Prepared
from pronk.workers.inference.projector import load_sight
from pronk.workers.inference.reading import Reading
from pronk.workers.parts import Parts

DIGEST = "d" * 64


@dataclass
class Run:
    """One request and what came of it."""

    prepared: Prepared
    pieces: list[str] = field(default_factory=list[str])
    """The text that came with each token."""
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    logprobs: list[PositionLogprobs | None] = field(default_factory=list[PositionLogprobs | None])
    failure: Failure | None = None
    left: bool = False
    first_step: int | None = None
    """The bench's step that brought the first token."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def tokens(self) -> list[int]:
        """The answer's tokens, without those of an earlier attempt."""
        return self.prepared.answer.tokens[self.prepared.resumed :]

    @property
    def reason(self) -> FinishReason | None:
        return self.prepared.answer.reason

    @property
    def cached(self) -> int:
        return self.prepared.sequence.accounts.cached


class Bench:
    """A model, an engine with some slots, and what a worker does around them."""

    def __init__(
        self,
        path: Path,
        *,
        slots: int = 4,
        length: int = 1024,
        cache_memory: int = 1 << 26,
        adapters: Sequence[Path] = (),
        projectors: Sequence[Path] = (),
        opening: Opening = NO_OPENING,
        template: str | None = None,
        reading: Reading | None = None,
        parameters: dict[str, Any] | None = None,
        **plan: Any,
    ) -> None:
        self.model = Model(path, adapters=adapters)
        self.engine = Engine(
            self.model, ContextPlan(slots, length, **{"threads": 1, **plan}), cache_memory
        )
        self.preparation = Preparation(
            self.model,
            length,
            can_shift=self.engine.context.can_shift,
            max_body=1 << 26,
            parameters=parameters or {},
            parts=Parts(opening, template, tuple(adapters), tuple(projectors)),
            reading=reading,
            sight=load_sight(self.model, projectors, 1),
            batch=self.engine.context.plan.batch,
        )
        self.steps = 0
        self._runs: dict[tuple[str, int], Run] = {}
        self._requests = 0

    def start(self, prompt: str, **changes: Any) -> Run:
        """Gives a raw prompt to the engine. `options`, `seed`, `context_length` and `deadline`
        are the request's; everything else is `GenerateBody`'s.
        """
        options = SamplingOptions(**changes.pop("options", {"temperature": 0}))
        header = Generate(
            f"{self._requests:032x}",
            1,
            "m",
            DIGEST,
            Caller(),
            "f" * 16,
            "ipc://x",
            changes.pop("seed", 7),
            1,
            context_length=changes.pop("context_length", None),
            deadline=changes.pop("deadline", None),
        )
        self._requests += 1
        body = GenerateBody(
            changes.pop("kind", Kind.COMPLETION),
            options,
            prompt=prompt,
            raw=changes.pop("raw", True),
            **changes,
        )
        run = Run(self.preparation.prepare(header, encode(body)))
        self._runs[run.prepared.sequence.key] = run
        self.engine.add(run.prepared.sequence)
        return run

    def step(self) -> Step:
        """One step, and what a worker's event loop makes of it."""
        step = self.engine.step()
        self.steps += 1
        for sampled in step.sampled:
            run = self._runs[sampled.key]
            if run.reason:
                continue
            chunks = run.prepared.answer.chunks(sampled.key, sampled.token)
            run.chunks += chunks
            run.pieces.append("".join(chunk.text for chunk in chunks))
            run.logprobs.append(sampled.logprobs)
            run.first_step = self.steps if run.first_step is None else run.first_step
            if run.reason and sampled.key not in dict(step.left):
                self._left(self.engine.cancel([sampled.key]))
        self._left(step)
        return step

    def cancel(self, run: Run) -> None:
        self._left(self.engine.cancel([run.prepared.sequence.key]))

    def _left(self, step: Step) -> None:
        for key, failure in step.left:
            run = self._runs.pop(key)
            run.left, run.failure = True, failure

    def finish(self, limit: int = 20_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(limit):
            if not self.engine.busy:
                return
            self.step()
        raise AssertionError("the engine did not come to an end")

    def run(self, prompt: str, **changes: Any) -> Run:
        """One request alone, from its prompt to its end."""
        run = self.start(prompt, **changes)
        self.finish()
        return run

    def run_all(self, prompts: Iterable[str], **changes: Any) -> list[Run]:
        """Several requests at the same time."""
        runs = [self.start(prompt, **changes) for prompt in prompts]
        self.finish()
        return runs

    def close(self) -> None:
        self.engine.close()
        self.model.close()
