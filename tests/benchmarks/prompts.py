"""How soon an answer begins: beside other work, in a second turn, by a shared system prompt."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from .load import Exchange, ask_all, connect, run
from .stand import GREEDY, MODEL, Plan, Texts, completion, line, say, serving

OTHERS = 15
LONG = 8000
SHORT_PROMPT_LETTERS = 24
ASKED_AT_MOST = 8


def first_token(plan: Plan) -> None:
    """The first token of a short prompt, while 15 others decode and one reads a long prompt.

    A step is what brings every other stream its next token.
    """
    for model in plan.models:
        with serving(model, OTHERS + 2, LONG + 1200, plan.threads) as server:
            say(f"first token beside 15 streams and a prompt of {LONG} tokens, on {model}")
            steps, waits, step = run(_first_tokens(server.port))
        line(
            model,
            "first token of a short prompt, in steps",
            f"{statistics.median(steps):.0f} (max {max(steps)})",
            f"of {step * 1000:.0f} ms",
            f"{statistics.median(waits) * 1000:.0f} ms, {len(steps)} asked",
            "≤ 3 steps",
        )


async def _first_tokens(port: int) -> tuple[list[int], list[float], float]:
    """Of each short request, the steps and seconds to its first token; and a step's seconds."""
    texts = Texts(2)

    def body(letters: int, tokens: int) -> dict[str, Any]:
        return completion(texts.text(letters), tokens)

    await ask_all(port, [body(24, 1)])  # loads the model
    others = [await connect(port, trace=True) for _ in range(OTHERS)]
    for one in others:
        one.send("/api/generate", body(24, 1100))
    await asyncio.gather(*(one.started for one in others))
    reader = await connect(port)
    reader.send("/api/generate", body(LONG, 1))
    sent = reader.sent
    steps, waits = list[int](), list[float]()
    while len(steps) < ASKED_AT_MOST:
        short = await connect(port)
        short.send("/api/generate", body(SHORT_PROMPT_LETTERS, 1))
        await short.done
        if reader.first or any(one.done.done() for one in others):
            break
        waits.append(short.first - short.sent)
        steps.append(max(_tokens_between(one, short.sent, short.first + 0.001) for one in others))
        short.close()
        # The next one comes at another moment of a step.
        await asyncio.sleep(waits[-1] * len(steps) / ASKED_AT_MOST)
    ended = reader.first or max(one.arrivals[-1][0] for one in others)
    step = (ended - sent) / max(max(_tokens_between(one, sent, ended) for one in others), 1)
    for one in [*others, reader]:
        one.close()
    if not steps:
        raise SystemExit("the long prompt was read before a short one was answered")
    return steps, waits, step


def _tokens_between(exchange: Exchange, start: float, end: float) -> int:
    return sum(count for when, count in exchange.arrivals if start < when <= end)


TURN = 4000


def second_turn(plan: Plan) -> None:
    """What a chat's second turn has to read, as far as time tells, beside what is new in it."""
    for model in plan.models:
        texts = Texts(3)
        messages = [{"role": "user", "content": texts.text(TURN)}]
        with serving(model, 4, 2 * TURN, plan.threads) as server:
            say(f"two turns of a chat of {TURN} tokens, on {model}")

            def ask(messages: list[dict[str, str]], port: int = server.port) -> Exchange:
                options = {**GREEDY, "num_predict": 8}
                body = {"model": MODEL, "messages": messages, "options": options}
                return run(ask_all(port, [body], "/api/chat"))[0]

            ask([{"role": "user", "content": texts.text(24)}])  # loads the model
            first = ask(messages).last
            messages += [
                {"role": "assistant", "content": texts.text(16)},
                {"role": "user", "content": texts.text(48)},
            ]
            second = ask(messages).last
        took = [turn["prompt_eval_duration"] / 1e6 for turn in (first, second)]
        new = second["prompt_eval_count"] - first["prompt_eval_count"]
        read = took[1] / took[0] * first["prompt_eval_count"]
        line(
            model,
            f"second turn of a {first['prompt_eval_count']}-token chat: read",
            f"{read:.0f} tokens' time",
            f"{new} new",
            f"{took[1]:.0f} ms, first {took[0]:.0f}",
            "new tokens only",
        )


USERS = 16
SYSTEM = 2000


def system_prompt(plan: Plan) -> None:
    """16 users with one system prompt that nobody had before, beside one user alone with one."""
    for model in plan.models:
        texts = Texts(4)

        def bodies(users: int, texts: Texts = texts) -> list[dict[str, Any]]:
            system = {"role": "system", "content": texts.text(SYSTEM)}
            return [
                {
                    "model": MODEL,
                    "messages": [system, {"role": "user", "content": texts.text(24)}],
                    "options": {**GREEDY, "num_predict": 1},
                }
                for _ in range(users)
            ]

        with serving(model, USERS, SYSTEM + 600, plan.threads) as server:
            say(f"a system prompt of {SYSTEM} tokens from {USERS} users, on {model}")
            run(ask_all(server.port, [completion(texts.text(24), 1)]))  # loads the model
            alone = run(ask_all(server.port, bodies(1), "/api/chat"))
            together = run(ask_all(server.port, bodies(USERS), "/api/chat"))
        length = alone[0].last["prompt_eval_count"]
        one = alone[0].first - alone[0].sent
        all_of_them = max(each.first for each in together) - min(each.sent for each in together)
        line(
            model,
            f"one system prompt of {length} tokens, {USERS} users",
            f"{all_of_them * 1000:.0f} ms",
            f"one user {one * 1000:.0f} ms",
            f"{all_of_them / one:.2f}",
            f"computed once, not {USERS} times",
        )
