"""Tokens per second through HTTP, beside raw llama.cpp and beside answers without a schema."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import closing

from support.models import ensure_model
from support.server import Server

from .load import ask_all, elapsed, run
from .raw import Raw
from .stand import Plan, Texts, completion, line, ratio_with_spread, say, serving

TOKENS = {
    "12m": {1: 512, 4: 384, 16: 256, 64: 128},
    "0.5b": {1: 96, 4: 96, 16: 96, 64: 96},
}
CONTEXT = {"12m": 1024, "0.5b": 256}
PROMPT_LETTERS = 24
AT_LEAST = {"12m": {16: 0.60}, "0.5b": {1: 0.97, 4: 0.97, 16: 0.97, 64: 0.97}}

SCHEMA = {
    "type": "array",
    "minItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer"},
            "kind": {"enum": ["first", "second", "third"]},
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": False,
    },
}


def widths(plan: Plan) -> None:
    """The same batch on both sides, at each number of streams."""
    for model in plan.models:
        for width in plan.widths:
            tokens = TOKENS[model].get(width, 64)
            bound = AT_LEAST[model].get(width)
            _beside_raw(plan, model, f"tokens/s at {width} streams", [tokens] * width, width, bound)


def holes(plan: Plan) -> None:
    """Every other one of 16 texts ends early: the slots between those that go on are empty."""
    for model in plan.models:
        tokens = TOKENS[model][16]
        counts = [tokens if slot % 2 else 4 for slot in range(16)]
        bound = 0.97 if model == "0.5b" else None
        _beside_raw(plan, model, "tokens/s, 8 of 16 slots active, spread", counts, 16, bound)


def _beside_raw(
    plan: Plan, model: str, what: str, counts: Sequence[int], slots: int, bound: float | None
) -> None:
    texts = Texts()
    context = CONTEXT[model]
    with (
        closing(Raw(ensure_model(model), slots, context, plan.threads)) as raw,  # type: ignore[arg-type]
        serving(model, slots, context, plan.threads) as server,
    ):
        prompts = [texts.text(PROMPT_LETTERS) for _ in counts]
        took = raw.choose_mode(prompts, min(counts[0], 16))
        took *= max(counts) / min(counts[0], 16)
        say(f"{what}: raw in mode {raw.mode}, about {took * (2 * plan.rounds + 1):.0f} s")
        _through_http(server, prompts, counts, raw)
        ours, theirs = list[float](), list[float]()
        for _ in range(plan.rounds):
            prompts = [texts.text(PROMPT_LETTERS) for _ in counts]
            theirs.append(sum(counts) / raw.seconds(prompts, counts))
            ours.append(sum(counts) / _through_http(server, prompts, counts, raw))
        line(
            model,
            what,
            f"{statistics.median(ours):.1f}",
            f"raw {statistics.median(theirs):.1f}",
            ratio_with_spread([mine / raws for mine, raws in zip(ours, theirs, strict=True)]),
            f"≥ {bound:.2f}" if bound else "",
        )


def _through_http(server: Server, prompts: Sequence[str], counts: Sequence[int], raw: Raw) -> float:
    """Seconds that the server takes; checks that it did the work that was asked for."""
    bodies = [completion(*each) for each in zip(prompts, counts, strict=True)]
    exchanges = run(ask_all(server.port, bodies))
    for exchange, prompt, count in zip(exchanges, prompts, counts, strict=True):
        last = exchange.last
        found = (last["prompt_eval_count"], last["eval_count"])
        if found != (raw.tokens(prompt), count):
            raise SystemExit(f"asked for {count} tokens after {raw.tokens(prompt)}, got {last}")
    return elapsed(exchanges)


def structured(plan: Plan) -> None:
    """The same number of tokens with a JSON schema and without one."""
    for model in plan.models:
        for width in (1, 16):
            _by_schema(plan, model, width)


def _by_schema(plan: Plan, model: str, width: int) -> None:
    tokens, texts = TOKENS[model][width], Texts(1)
    with serving(model, width, CONTEXT[model], plan.threads) as server:

        def speed(count: int, **form: object) -> float:
            prompts = [texts.text(PROMPT_LETTERS) for _ in range(width)]
            bodies = [completion(prompt, count, **form) for prompt in prompts]
            exchanges = run(ask_all(server.port, bodies))
            generated = sum(one.last["eval_count"] for one in exchanges)
            return generated / elapsed(exchanges)

        speed(8)  # loads the model
        speed(8, format=SCHEMA)  # and what constraints need
        seconds = tokens * width / speed(8) * 2 * plan.rounds
        say(f"structured output at {width} streams: about {seconds:.0f} s")
        free, bound = list[float](), list[float]()
        for _ in range(plan.rounds):
            free.append(speed(tokens))
            bound.append(speed(tokens, format=SCHEMA))
    line(
        model,
        f"tokens/s by a JSON schema, {width} streams",
        f"{statistics.median(bound):.1f}",
        f"free {statistics.median(free):.1f}",
        ratio_with_spread([b / f for b, f in zip(bound, free, strict=True)]),
        "≥ 0.97" if model == "0.5b" else "",
    )
