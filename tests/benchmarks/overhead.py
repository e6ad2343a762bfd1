"""What a step costs beside llama.cpp's own work: an engine without processes around it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from support.engines import Bench
from support.models import ensure_model

from .stand import Plan, Texts, line

SLOTS = 16
TOKENS = {"12m": 256, "0.5b": 32}
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "repeat_penalty": 1.0},
    "default options": {},
}


def overhead(plan: Plan) -> None:
    """Time in the engine's steps that is not spent in llama.cpp's decode, sampling included."""
    for model in plan.models:
        path = ensure_model(model)  # type: ignore[arg-type]
        with closing(Bench(path, slots=SLOTS, length=512)) as bench:
            decode = _Clocked(bench.engine.context.decode)
            bench.engine.context.decode = decode  # type: ignore[method-assign]
            step = _Clocked(bench.engine.step)
            bench.engine.step = step  # type: ignore[method-assign]
            for name, options in OPTIONS.items():
                texts = Texts(5)
                for tokens in (4, TOKENS[model]):  # the first ones warm up
                    step.clear()
                    decode.clear()
                    prompts = [texts.text(24) for _ in range(SLOTS)]
                    bench.run_all(prompts, options={**options, "num_predict": tokens})
                beside = (step.seconds - decode.seconds) / step.calls * 1e6
                share = decode.seconds / step.seconds
                line(
                    model,
                    f"beside a decode, {SLOTS} streams, {name}",
                    f"{beside:.0f} µs",
                    f"{decode.seconds / decode.calls * 1e3:.1f} ms",
                    f"{share:.3f}",
                    f"{beside / SLOTS:.0f} µs a token",
                )


class _Clocked:
    """A function whose calls are counted and timed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.clear()

    def clear(self) -> None:
        self.calls, self.seconds = 0, 0.0

    def __call__(self, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._function(*arguments)
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - began
