"""What leads an answer, as far as all answers to one kind of request share it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..constraints import Matcher
from ..token_table import TokenTable
from .openings import Openings


class Sign(Enum):
    """What a text means that is no call."""

    THINKS = "thinks"
    """Reasoning begins."""
    THOUGHT = "thought"
    """Reasoning is over."""
    FORBIDDEN = "forbidden"
    """Nothing that may come."""
    SAYS = "says"
    """What announces the text for the reader."""
    FORM = "form"
    """That text itself, where it has a form."""


@dataclass(frozen=True, slots=True)
class CallWay:
    """A way into calls."""

    prototype: Matcher
    """At its beginning; only copies of it follow answers."""
    ends_answer: bool = False


Meaning = Sign | CallWay


@dataclass(frozen=True, slots=True)
class Places:
    """What may open where."""

    first: Openings[Meaning]
    """At the beginning of an answer, or of what comes behind reasoning."""
    again: Openings[Meaning]
    """Behind a call."""
    later: Openings[Meaning]
    """Within text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several ways to begin."""

    meaning: Meaning
    prototype: Matcher


@dataclass(frozen=True, slots=True)
class Plan:
    """What leads answers."""

    table: TokenTable
    places: Places
    quiet: Places
    """Where no more reasoning may begin."""
    thought: Openings[Meaning] | None = None
    """What ends reasoning; None for models that do not reason."""
    closing: tuple[int, ...] = ()
    """Tokens that end reasoning."""
    last_closing: tuple[int, ...] = ()
    """Tokens that end it for good, where it was begun anew."""
    lead: bytes = b""
    """The end of the prompt, where an opening may have begun."""
    choices: tuple[Choice, ...] = ()
    """The ways to begin what is not reasoning, where text is not free."""
    may_think: bool = True
    must_call: bool = False
    """Whether the answer begins with a call."""
    form: Matcher | None = None
    """Of what is for the reader."""

    @property
    def binds(self) -> bool:
        """Whether what comes behind reasoning is not free."""
        return self.must_call or self.form is not None
