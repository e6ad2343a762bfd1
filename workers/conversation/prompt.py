"""From a request's body to the tokens that the engine reads.

A template's own control tokens count as such; those that somebody wrote into a message, a tool or
a prompt are only text there (`specials`). In a raw prompt all of them count: its sender writes what
a template would.

Everything here may run in several threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage, GenerateBody, Kind
from .choice import request_template
from .fitting import Fitting, Tokenizer
from .opening import NO_OPENING, Opening
from .specials import Guard, Rendered
from .template import Template

Rendering = Callable[[Sequence[ChatMessage]], Rendered]

_FEW = 16
"""Characters that fit into any context around a gap, or else nothing does."""


def build_prompt(
    body: GenerateBody,
    template: Template | None,
    tokenizer: Tokenizer,
    context_length: int,
    opening: Opening = NO_OPENING,
    guard: Guard | None = None,
) -> list[int]:
    """The prompt of a request: at least one token, at most `context_length - 1`.

    `opening` is the model's own, `guard` what knows its control tokens beside its template. What is
    too long is cut where the request allows it: a chat loses its oldest messages, of which the
    model's are the first to go, a completion its middle. Raises `PronkError` when the prompt does
    not fit, is empty, or cannot be rendered.
    """
    for token in (*body.context, *body.tokens):
        if token >= tokenizer.size:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"context: the model has no token {token}; send only what this model returned",
            )
    fitting = Fitting(tokenizer, context_length, body)
    guard = guard or Guard(tokenizer.specials, template.source if template else "")
    if body.kind is Kind.COMPLETION:
        return _completion(body, template, tokenizer, fitting, opening, guard)
    rendering = _rendering(_needed(template), guard, body)
    messages = opening.of_chat(body.messages)
    if not body.truncate:
        return fitting.whole(rendering(messages))
    return _truncated(messages, rendering, fitting)


def _completion(
    body: GenerateBody,
    template: Template | None,
    tokenizer: Tokenizer,
    fitting: Fitting,
    opening: Opening,
    guard: Guard,
) -> list[int]:
    """The prompt of a text that is to be continued, answered or filled in."""
    if body.raw:
        return fitting.cut(body.prompt)
    if body.suffix:  # a gap is no conversation
        opening = NO_OPENING
    system = opening.system_of(body.system)
    messages = opening.of_prompt(body.prompt, system, goes_on=bool(body.context))
    if body.template is not None:
        own = request_template(body.template, bos=tokenizer.bos_text, eos=tokenizer.eos_text)
        parts = {"system": system, "prompt": body.prompt, "suffix": body.suffix}
        return fitting.cut(own.guarded(messages, guard.of(body.template), **parts))
    if body.suffix:
        if template is not None and template.fills:
            return _filled(body, template, fitting, guard)
        if tokenizer.infill is None:
            raise PronkError(Code.INVALID_REQUEST, "the model does not support insert")
        return fitting.around(tokenizer.infill, body.prompt, body.suffix)
    return fitting.cut(_rendering(_needed(template), guard, body)(messages))


def _filled(body: GenerateBody, template: Template, fitting: Fitting, guard: Guard) -> list[int]:
    """The prompt around a gap, as the model's template writes it.

    Where it is too long and may be cut, both texts lose what is farthest from the gap, and the one
    before it keeps three quarters. How many characters fit is found in steps that double, then
    halve, so that little more is tokenized than what is kept.
    """
    prompt, suffix = body.prompt, body.suffix

    def cut_to(size: int) -> Rendered:
        behind = max(size // 4, size - len(prompt))
        before = max(size - min(behind, len(suffix)), 0)
        return template.fill(prompt[max(len(prompt) - before, 0) :], suffix[:behind], guard)

    whole = template.fill(prompt, suffix, guard)
    if not body.truncate or fitting.fits(whole):
        return fitting.whole(whole)
    size = step = _FEW
    while step >= _FEW:
        if fitting.fits(cut_to(size + step), cut=True):
            size, step = size + step, 2 * step
        else:
            break
    while step >= max(_FEW, size // 16):
        step //= 2
        if fitting.fits(cut_to(size + step), cut=True):
            size += step
    return fitting.whole(cut_to(size))


def _needed(template: Template | None) -> Template:
    if template is None:
        raise PronkError(
            Code.INVALID_REQUEST, "the model has no chat template; use /api/generate with raw"
        )
    return template


def _rendering(template: Template, guard: Guard, body: GenerateBody) -> Rendering:
    """How a request has messages rendered. Tools that may not be called are not shown."""
    tools: Sequence[Mapping[str, Any]] = getattr(body, "tools", ())
    if getattr(body, "tool_choice", "") == "none":
        tools = ()
    think = getattr(body, "think", None)
    return lambda messages: template.guarded(messages, guard, tools=tools, think=think)


def _truncated(messages: Sequence[ChatMessage], render: Rendering, fitting: Fitting) -> list[int]:
    """The prompt of the longest end of a conversation that fits, with all system messages.

    What is kept begins with a user's message, because many templates refuse anything else, or is
    the last message alone. Steps that double, backwards from there, keep the cost to a few times
    that of what is kept, however long the history.
    """
    whole = render(messages)
    if len(messages) < 2 or fitting.fits(whole):
        return fitting.whole(whole)
    last = len(messages) - 1
    starts = [i for i in range(1, last) if messages[i].role == "user"] + [last]
    low, high = 0, len(starts) - 1  # the last one is tried whether it fits or not
    step = 1
    while low < high:
        middle = max(high - step, low) if step else (low + high) // 2
        if fitting.fits(render(_from(messages, starts[middle]))):
            high, step = middle, 2 * step
        else:
            low, step = middle + 1, 0
    return fitting.whole(render(_from(messages, starts[low])))


def _from(messages: Sequence[ChatMessage], start: int) -> list[ChatMessage]:
    """The messages from `start` on, and every system message before it."""
    return [m for m in messages[:start] if m.role == "system"] + list(messages[start:])
