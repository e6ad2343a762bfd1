"""What a conversation costs beside the model's own work: writing its prompt, reading its answer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from pronk.workers.conversation.analysis import analysed
from pronk.workers.conversation.coprocess import Coprocesses
from pronk.workers.conversation.formats.parser import AnswerParser
from pronk.workers.conversation.renders import LOOP, lastingly
from pronk.workers.conversation.specials import Guard, Special
from pronk.workers.conversation.template import ChatTemplate
from pronk.workers.conversation.turns import Turn
from support import templates
from support.models import ensure_model

from .raw import Raw
from .stand import Plan, Texts, line

WIDTH = 16
TOKENS = {"12m": 128, "0.5b": 24}
CONTEXT = {"12m": 512, "0.5b": 128}
TURNS = 100
SHORT = 5
WORDS = 60
"""Of each message."""
MOST_MILLISECONDS = 5
MOST_SHARE = 0.01
PIECE = 4
"""Characters of a token."""
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
ANSWER = "<think>\n" + "so it may be " * 40 + "\n</think>\n\n" + "and it is so, " * 80


def conversation(plan: Plan) -> None:
    """A long history is written; a short one is written and its answer read token by token, beside
    the time that raw llama.cpp takes for as many tokens at 16 streams, without the prompt.
    """
    history = [
        Turn("user" if n % 2 == 0 else "assistant", "some words of it " * (WORDS // 4))
        for n in range(TURNS - 1)
    ]
    writers = list(map(_writer, templates.ALL))
    slowest = max(_seconds(partial(write, history)) for write in writers)
    short = max(_seconds(partial(write, history[:SHORT])) for write in writers)
    what = f"ms to write {TURNS} turns, slowest template"
    line("", what, f"{slowest * 1000:.2f}", "", "", f"≤ {MOST_MILLISECONDS}")
    form = analysed(templates.TAGS).form
    pieces = [ANSWER[at : at + PIECE] for at in range(0, len(ANSWER), PIECE)]

    def read() -> None:
        parser = AnswerParser(form, tools=[TOOL])
        for piece in pieces:
            parser.push(piece)
        parser.finish()

    each = _seconds(read) / len(pieces)
    for model in plan.models:
        _beside_raw(plan, model, each, short)


def _writer(source: str) -> Callable[[Sequence[Turn]], object]:
    """Writes a prompt as a worker does, with the control tokens of users known as text."""
    analysis = analysed(source)
    template = ChatTemplate(
        source,
        bos="<s>",
        eos="</s>",
        traits=analysis.traits,
        form=analysis.form,
        write=lastingly(source, Coprocesses(LOOP)),
    )
    guard = Guard([Special(1, "<|im_start|>"), Special(2, "<|im_end|>")], source)
    return lambda turns: template.guarded(turns, guard, tools=[TOOL])


def _beside_raw(plan: Plan, model: str, each: float, writing: float) -> None:
    texts, tokens = Texts(), TOKENS[model]
    shares: list[float] = []
    beside: list[float] = []
    with closing(Raw(ensure_model(model), WIDTH, CONTEXT[model], plan.threads)) as raw:  # type: ignore[arg-type]
        raw.choose_mode([texts.text(24) for _ in range(WIDTH)], 8)
        for _ in range(plan.rounds):
            took = raw.seconds([texts.text(24) for _ in range(WIDTH)], [tokens] * WIDTH)
            beside.append(took / tokens / WIDTH * 1e6)
            shares.append((each * tokens + writing) * WIDTH / took)
    line(
        model,
        f"us a token to read, share with {SHORT} turns",
        f"{each * 1e6:.2f}",
        f"raw {statistics.median(beside):.0f}",
        f"{statistics.median(shares):.5f} ({min(shares):.5f}-{max(shares):.5f})",
        f"≤ {MOST_SHARE}" if model == "0.5b" else "",
    )


def _seconds(work: Callable[[], object]) -> float:
    """The median time of some runs."""
    work()
    times: list[float] = []
    for _ in range(15):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
