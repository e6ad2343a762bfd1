"""A template as it is seen by whoever finds out about it: turns go in, a text or nothing comes out.

There is one way to give a template a conversation, and it is the one in which workers do it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...protocol.errors import PronkError
from .go_chat import Think
from .gotemplate import GoTemplateError
from .jinja import Broken, Complaint
from .traits import Traits, identified
from .turns import Turn

Tools = Sequence[Mapping[str, Any]]

_BOTH = (False, True)


class Rendering(Protocol):
    """A template, given everything that there is to be given."""

    @property
    def fills(self) -> bool:
        """Whether it has a place for the text behind a gap."""
        ...

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Tools = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `PronkError`, `GoTemplateError`, `Complaint` or `Broken` where
        the template refuses, or fails.
        """
        ...


class Write(Protocol):
    """Writes turns as a Jinja template has them that takes what `traits` say, not adapted any
    more. Raises `Complaint` or `Broken`.
    """

    def __call__(
        self,
        turns: Sequence[Turn],
        traits: Traits,
        tools: Tools,
        think: Think,
        /,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text."""
        ...


@dataclass(frozen=True, slots=True)
class JinjaRendering:
    """A Jinja template that is given its messages in one of several ways."""

    write: Write
    traits: Traits

    @property
    def fills(self) -> bool:
        """No Jinja template has a name for such a text."""
        return False

    def ways(self) -> tuple[JinjaRendering, ...]:
        """This one first, then with everything else in which templates disagree about calls."""
        others = [
            replace(self.traits, arguments_as_text=as_text, null_content=null)
            for as_text in _BOTH
            for null in _BOTH
        ]
        return tuple(
            JinjaRendering(self.write, traits) for traits in dict.fromkeys([self.traits, *others])
        )

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Tools = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `Complaint` or `Broken`."""
        turns = identified(turns, self.traits)
        return self.write(
            turns, self.traits, tools, think, add_generation_prompt=add_generation_prompt
        )


class _Prompting(Protocol):
    @property
    def fills(self) -> bool: ...

    def render(
        self, messages: Sequence[Turn], /, *, tools: Tools = (), think: Think = None
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class GoRendering:
    """A Go template. It always ends where the model is to speak."""

    template: _Prompting

    @property
    def fills(self) -> bool:
        """Whether it names the text behind a gap."""
        return self.template.fills

    def render(
        self,
        turns: Sequence[Turn],
        *,
        tools: Tools = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text. Raises `PronkError`."""
        return self.template.render(turns, tools=tools, think=think)


def attempt(
    rendering: Rendering, turns: Sequence[Turn], tools: Tools, think: Think, generates: bool
) -> str | None:
    """What a template writes; None where it refuses or fails."""
    try:
        return rendering.render(turns, tools=tools, think=think, add_generation_prompt=generates)
    except (PronkError, GoTemplateError, Complaint, Broken):
        return None
