"""From a request's body to the tokens that the engine reads.

The rendered text is tokenized as a whole, control tokens included: a template cannot be written
otherwise. A user who writes `<|im_end|>` therefore writes that control token, as with llama.cpp's
and Ollama's servers. Only where a gap is to be filled in, the text is nothing but text.

Everything here may run in several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage, GenerateBody, Kind
from .choice import request_template
from .fitting import Fitting, Tokenizer
from .opening import NO_OPENING, Opening
from .template import Template

_FEW = 16
"""Characters that fit into any context around a gap, or else nothing does."""


def build_prompt(
    body: GenerateBody,
    template: Template | None,
    tokenizer: Tokenizer,
    context_length: int,
    opening: Opening = NO_OPENING,
) -> list[int]:
    """The prompt of a request: at least one token, at most `context_length - 1`.

    `opening` is the model's own. What is too long is cut where the request allows it: a chat loses
    its oldest messages, of which the model's are the first to go, a completion its middle. Raises
    `PronkError` when the prompt does not fit, is empty, or cannot be rendered.
    """
    for token in (*body.context, *body.tokens):
        if token >= tokenizer.size:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"context: the model has no token {token}; send only what this model returned",
            )
    fitting = Fitting(tokenizer, context_length, body)
    if body.kind is Kind.COMPLETION:
        return _completion(body, template, tokenizer, fitting, opening)
    rendering = _needed(template)
    messages = opening.of_chat(body.messages)
    if not body.truncate:
        return fitting.whole(rendering.render(messages))
    return _truncated(messages, rendering, fitting)


def _completion(
    body: GenerateBody,
    template: Template | None,
    tokenizer: Tokenizer,
    fitting: Fitting,
    opening: Opening,
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
        return fitting.cut(own.render(messages, **parts))
    if body.suffix:
        if template is not None and template.fills:
            return _filled(body, template, fitting)
        if tokenizer.infill is None:
            raise PronkError(Code.INVALID_REQUEST, "the model does not support insert")
        return fitting.around(tokenizer.infill, body.prompt, body.suffix)
    return fitting.cut(_needed(template).render(messages))


def _filled(body: GenerateBody, template: Template, fitting: Fitting) -> list[int]:
    """The prompt around a gap, as the model's template writes it.

    Where it is too long and may be cut, both texts lose what is farthest from the gap, and the one
    before it keeps three quarters. How many characters fit is found in steps that double, then
    halve, so that little more is tokenized than what is kept.
    """
    prompt, suffix = body.prompt, body.suffix

    def cut_to(size: int) -> str:
        behind = max(size // 4, size - len(prompt))
        before = max(size - min(behind, len(suffix)), 0)
        return template.fill(prompt[max(len(prompt) - before, 0) :], suffix[:behind])

    whole = template.fill(prompt, suffix)
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


def _truncated(messages: Sequence[ChatMessage], template: Template, fitting: Fitting) -> list[int]:
    """The prompt of the longest end of a conversation that fits, with all system messages.

    What is kept begins with a user's message, because many templates refuse anything else, or is
    the last message alone. Steps that double, backwards from there, keep the cost to a few times
    that of what is kept, however long the history.
    """
    whole = template.render(messages)
    if len(messages) < 2 or fitting.fits(whole):
        return fitting.whole(whole)
    last = len(messages) - 1
    starts = [i for i in range(1, last) if messages[i].role == "user"] + [last]
    low, high = 0, len(starts) - 1  # the last one is tried whether it fits or not
    step = 1
    while low < high:
        middle = max(high - step, low) if step else (low + high) // 2
        if fitting.fits(template.render(_from(messages, starts[middle]))):
            high, step = middle, 2 * step
        else:
            low, step = middle + 1, 0
    return fitting.whole(template.render(_from(messages, starts[low])))


def _from(messages: Sequence[ChatMessage], start: int) -> list[ChatMessage]:
    """The messages from `start` on, and every system message before it."""
    return [m for m in messages[:start] if m.role == "system"] + list(messages[start:])
