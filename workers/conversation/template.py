"""Chat templates: Jinja or Go source from a model or from a request, so from anybody.

minijinja renders Jinja: no Python object is within its reach, and fuel bounds its steps. Fuel
does not bound memory: one line that doubles a text takes gigabytes within a few steps. So a model's
own template is tried in a process of its own before it is used (`analysis`), and what it makes of
a conversation is rendered in processes where memory and time end before the worker's do
(`renders`). Go templates are bounded in all of this wherever they come from, and need none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...protocol.errors import Code, PronkError
from . import renders
from .formats.description import TEXT_ALONE, Format
from .go_chat import GoChat, Think
from .gotemplate import GoTemplateError
from .gotemplate import Template as GoTemplate
from .jinja import Broken, Complaint, Spent
from .renders import Render
from .specials import NO_GUARD, Guard, Mark, Rendered, unchanged
from .traits import TAKES_ALL, Traits, adapted, messages_of
from .turns import Turn, turn_of
from .words import Talk

if TYPE_CHECKING:  # the program that tries templates starts quickly without it
    from ...protocol.messages.generation import ChatMessage

_log = logging.getLogger(__name__)

_FUEL = 200_000
_FUEL_PER_MESSAGE = 5_000
_OUTPUT = 1024 * 1024
"""Characters that a template may write beside eight times what it was given."""

Tools = Sequence[Mapping[str, Any]]
"""Tools as JSON has them, in OpenAI's form."""


class Template(Protocol):
    """A model's template, in whatever language."""

    @property
    def source(self) -> str:
        """Its text."""
        ...

    @property
    def fills(self) -> bool:
        """Whether it can ask for what stands between two texts."""
        ...

    @property
    def form(self) -> Format:
        """How a model writes its answers that was trained with it."""
        ...

    def render(
        self, messages: Sequence[ChatMessage | Turn], *, tools: Tools = (), think: Think = None
    ) -> str:
        """The prompt text of `messages`, up to where the assistant begins to speak.

        `think` is what the request says of thinking. Raises `PronkError`.
        """
        ...

    def guarded(
        self,
        messages: Sequence[ChatMessage | Turn],
        guard: Guard,
        *,
        tools: Tools = (),
        think: Think = None,
    ) -> Rendered:
        """The same, with control tokens in it known as the template's or a user's."""
        ...

    def fill(self, prompt: str, suffix: str, guard: Guard = NO_GUARD) -> Rendered:
        """The prompt text that asks for what stands between two texts, if it `fills`.

        Raises `PronkError`.
        """
        ...


class _Jinja:
    """What is the same for every Jinja template: what it is given, and how much it may take."""

    fills = False

    def __init__(
        self, source: str, write: Render, *, bos: str, eos: str, traits: Traits = TAKES_ALL
    ) -> None:
        """`write` renders the source; `bos` and `eos` are the texts of the model's beginning and
        end tokens.
        """
        self.source = source
        self._write = write
        self.traits = traits
        """What the template takes."""
        self.reasoning: tuple[str, str] | None = None
        """The markers before and behind what the model thinks, where they are known."""
        self._globals: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "documents": None,
        }

    def text(
        self,
        turns: Sequence[Turn],
        traits: Traits,
        tools: Tools,
        think: Think,
        *,
        add_generation_prompt: bool = True,
        parts: Mapping[str, str] | None = None,
    ) -> str:
        """The text of turns that are adapted to `traits`. Raises `Complaint` or `Broken`."""
        size = Talk(turns, tools).size + sum(map(len, (parts or {}).values()))
        fuel = _FUEL + _FUEL_PER_MESSAGE * (len(turns) + len(tools))
        variables = {
            **self._globals,
            **_thinking(think),
            "tools": list(tools) or None,
            "add_generation_prompt": add_generation_prompt,
            "messages": messages_of(turns, traits),
            **(parts or {}),
        }
        limit = _OUTPUT + 8 * size
        if add_generation_prompt and _is_begun(turns):
            text = self._continued(turns, traits, fuel, limit, variables)
            if text is not None:
                return text
        if add_generation_prompt and len(turns) > 1 and _is_silent(turns[-1]):
            variables["messages"].pop()
        try:
            text = self._write(fuel, limit, variables)
        except Broken as broken:
            if not tools or isinstance(broken, Spent):
                raise
            # It may rely on what a tool need not have.
            text = self._write(fuel, limit, variables | {"tools": list(map(_complete, tools))})
        return self._closed(text) if think is False and add_generation_prompt else text

    def _continued(
        self,
        turns: Sequence[Turn],
        traits: Traits,
        fuel: int,
        limit: int,
        variables: dict[str, Any],
    ) -> str | None:
        """The prompt that ends with what the assistant has begun to say; None where the template
        cannot write it.
        """
        last = turns[-1]
        everything = "".join(t.content + t.thinking for t in turns) + self.source
        end = next((mark for mark in _ENDS if mark not in everything), None)
        if end is None:
            return None
        if last.content:
            begun = replace(last, content=last.content + end)
        else:
            begun = replace(last, thinking=last.thinking + end)
        changed = {
            "messages": messages_of([*turns[:-1], begun], traits),
            "add_generation_prompt": False,
        }
        try:
            text = self._write(fuel, limit, variables | changed)
        except Spent:
            raise
        except (Complaint, Broken):
            return None
        before, found, _ = text.partition(end)
        return before if found else None

    def _closed(self, text: str) -> str:
        """A prompt after which the model does not think, as far as its text can say so."""
        opens, closes = self.reasoning or (self.traits.opens, self.traits.closes)
        if opens and closes:
            end = text.rstrip()
            if end.endswith(opens):
                return f"{end}\n\n{closes}\n\n"
            if self.reasoning and not self.traits.switches and not end.endswith(closes):
                return f"{text}{opens}\n\n{closes}\n\n"
        return text


class ChatTemplate(_Jinja):
    """A model's own Jinja template, rendered the way Hugging Face's `apply_chat_template` does.

    May be used by several threads at once.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str,
        eos: str,
        traits: Traits = TAKES_ALL,
        form: Format = TEXT_ALONE,
        write: Render | None = None,
    ) -> None:
        """`write` renders the source: in this process, where nothing is said."""
        super().__init__(source, write or renders.here(source), bos=bos, eos=eos, traits=traits)
        self.form = form
        """How a model writes its answers that was trained with it."""
        if form.reasoning:
            self.reasoning = form.reasoning.start, form.reasoning.end

    def render(
        self,
        messages: Sequence[ChatMessage | Turn],
        *,
        tools: Tools = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text of `messages`, up to where the assistant begins to speak.

        Where the last message is the assistant's, the prompt ends where that does. Raises
        `PronkError`: INVALID_REQUEST with the template's own words where it refuses the
        conversation, INTERNAL where the template itself fails.
        """
        talk = Talk(adapted(map(turn_of, messages), self.traits, self.form.calls), tools)
        talk.words()
        return self._rendered(talk, think, unchanged, add_generation_prompt)

    def guarded(
        self,
        messages: Sequence[ChatMessage | Turn],
        guard: Guard,
        *,
        tools: Tools = (),
        think: Think = None,
    ) -> Rendered:
        """The same, with control tokens in it known as the template's or a user's."""
        talk = Talk(adapted(map(turn_of, messages), self.traits, self.form.calls), tools)
        return guard.render(lambda mark: self._rendered(talk, think, mark, True), talk.words())

    def _rendered(self, talk: Talk, think: Think, mark: Mark, generates: bool) -> str:
        talk = talk.marked(mark)
        try:
            return self.text(
                talk.turns, self.traits, talk.tools, think, add_generation_prompt=generates
            )
        except Complaint as complaint:
            raise PronkError(
                Code.INVALID_REQUEST, f"the model's chat template refuses this: {complaint}"
            ) from None
        except Spent as spent:
            raise _failed(spent, Code.INVALID_REQUEST) from None
        except Broken as broken:
            raise _failed(broken) from None

    def fill(self, prompt: str, suffix: str, guard: Guard = NO_GUARD) -> Rendered:
        """Nothing: no Jinja template of a model has a place for a suffix."""
        raise NotImplementedError


class GoChatTemplate:
    """A model's own Go template. May be used by several threads at once."""

    def __init__(
        self, template: GoTemplate, source: str = "", *, form: Format = TEXT_ALONE
    ) -> None:
        self._chat = GoChat(template)
        self.source = source
        self.form = form
        """How a model writes its answers that was trained with it."""

    @property
    def fills(self) -> bool:
        """Whether it has a place for the text behind a gap."""
        return self._chat.fills

    def render(
        self, messages: Sequence[ChatMessage | Turn], *, tools: Tools = (), think: Think = None
    ) -> str:
        """The prompt text of `messages`. Raises `PronkError` (INTERNAL) where the template fails.

        `tools` are as JSON has them; `think` is what the request says of thinking.
        """
        try:
            return self._chat.render(messages, tools=tools, think=think)
        except GoTemplateError as error:
            raise _failed(error) from None

    def guarded(
        self,
        messages: Sequence[ChatMessage | Turn],
        guard: Guard,
        *,
        tools: Tools = (),
        think: Think = None,
    ) -> Rendered:
        """The same, with control tokens in it known as the template's or a user's."""
        talk = Talk(list(map(turn_of, messages)), tools)

        def render(mark: Mark) -> str:
            marked = talk.marked(mark)
            return self.render(marked.turns, tools=marked.tools, think=think)

        return guard.render(render, talk.words())

    def fill(self, prompt: str, suffix: str, guard: Guard = NO_GUARD) -> Rendered:
        """The prompt text around a gap. Raises `PronkError` (INTERNAL)."""
        try:
            return guard.render(
                lambda mark: self._chat.fill(mark(prompt), mark(suffix)), [prompt, suffix]
            )
        except GoTemplateError as error:
            raise _failed(error) from None


def _failed(reason: Exception, code: Code = Code.INTERNAL) -> PronkError:
    _log.warning("the chat template failed: %s", reason)
    return PronkError(
        code,
        f"the model's chat template failed: {reason}; "
        "/api/generate with raw does without the template",
    )


class GoRequestTemplate:
    """A Go template that came with a request."""

    def __init__(self, template: GoTemplate) -> None:
        self._chat = GoChat(template)

    def render(self, messages: Sequence[ChatMessage | Turn], **parts: str) -> str:
        """The prompt text. Raises `PronkError` (INVALID_REQUEST) whatever goes wrong with it."""
        return self.guarded(messages, NO_GUARD, **parts).text

    def guarded(
        self, messages: Sequence[ChatMessage | Turn], guard: Guard, **parts: str
    ) -> Rendered:
        """The same, with control tokens in it known as the template's or a user's.

        As in Ollama, a request with a `suffix` has no messages, only its `prompt`.
        """
        talk = Talk(list(map(turn_of, messages)))
        try:
            if suffix := parts.get("suffix"):
                prompt = parts["prompt"]
                return guard.render(
                    lambda mark: self._chat.fill(mark(prompt), mark(suffix)), [prompt, suffix]
                )
            return guard.render(
                lambda mark: self._chat.render(talk.marked(mark).turns), talk.words()
            )
        except GoTemplateError as error:
            raise PronkError(Code.INVALID_REQUEST, f"template: {error}") from None


class RequestTemplate(_Jinja):
    """A Jinja template that came with a request.

    Beside the messages it is given their parts by name. It was written for this conversation, and
    only where it refuses that, or fails with it, is the conversation adapted to it.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str,
        eos: str,
        find_traits: Callable[[], Traits | None] = lambda: None,
    ) -> None:
        """`find_traits` finds out what the template takes, if that is possible."""
        super().__init__(source, renders.once(source), bos=bos, eos=eos)
        self._find_traits = find_traits

    def render(self, messages: Sequence[ChatMessage | Turn], **parts: str) -> str:
        """The prompt text. Raises `PronkError` (INVALID_REQUEST) whatever goes wrong with it."""
        return self.guarded(messages, NO_GUARD, **parts).text

    def guarded(
        self, messages: Sequence[ChatMessage | Turn], guard: Guard, **parts: str
    ) -> Rendered:
        """The same, with control tokens in it known as the template's or a user's."""
        turns = list(map(turn_of, messages))
        try:
            return self._rendered(turns, guard, parts)
        except (Complaint, Broken) as error:
            reason = error
        if not isinstance(reason, Spent) and len(turns) > 1:
            traits = self._find_traits()
            if traits and traits != self.traits:
                self.traits = traits
                try:
                    return self._rendered(turns, guard, parts)
                except (Complaint, Broken) as error:
                    reason = error
        refusal = "it refuses this: " if isinstance(reason, Complaint) else ""
        raise PronkError(Code.INVALID_REQUEST, f"template: {refusal}{reason}")

    def _rendered(self, turns: Sequence[Turn], guard: Guard, parts: Mapping[str, str]) -> Rendered:
        talk = Talk(adapted(turns, self.traits))

        def render(mark: Mark) -> str:
            marked = {name: mark(text) for name, text in parts.items()}
            return self.text(talk.marked(mark).turns, self.traits, (), None, parts=marked)

        return guard.render(render, [*talk.words(), *parts.values()])


_ENDS = tuple(map(chr, range(0x2A6D1, 0x2A6DE)))
"""Letters of which one marks where the assistant's last words end."""


def _is_begun(turns: Sequence[Turn]) -> bool:
    """Whether the assistant is to go on with what it said last."""
    last = turns[-1] if turns else None
    if last is None or last.role != "assistant" or last.tool_calls:
        return False
    return bool(last.content or last.thinking)


def _is_silent(turn: Turn) -> bool:
    """Whether the assistant said nothing that a template would write."""
    return turn.role == "assistant" and not turn.content and not turn.tool_calls


def _complete(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool with everything that one may have."""
    function: Any = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    known = dict(cast(Mapping[str, Any], function))
    parameters: Any = known.get("parameters")
    known["parameters"] = {"type": "object", "properties": {}, "required": []} | (
        dict(cast(Mapping[str, Any], parameters)) if isinstance(parameters, Mapping) else {}
    )
    known["description"] = known.get("description") or ""
    return {**tool, "type": tool.get("type") or "function", "function": known}


def _thinking(think: Think) -> dict[str, Any]:
    """The variables by which templates are told of thinking."""
    if think is None:
        return {}
    variables: dict[str, Any] = {"enable_thinking": bool(think), "thinking": bool(think)}
    if think is False:
        variables |= {"reasoning_effort": "low", "thinking_budget": 0}
    elif isinstance(think, str):
        variables["reasoning_effort"] = "high" if think == "max" else think
    return variables
