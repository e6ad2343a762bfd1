"""Makes what leads an answer, from the format of the model's answers and what a request wishes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from ....protocol.errors import Code, PronkError
from ....protocol.messages.generation import Constraint, GenerateBody, ToolChoice
from ...conversation.formats.description import Format
from ..bounded import TookTooLong
from ..constraints import (
    COMPILE_SECONDS,
    LIMITS,
    ConstraintCompiler,
    ConstraintFailed,
    Matcher,
    compiled,
)
from ..sequence import AnswerForm
from ..token_table import TokenTable
from . import calls, harmony
from .calls import Entry
from .guide import Guide
from .lark import OPTIONS, literal
from .openings import Opening, Openings
from .plan import CallWay, Choice, Meaning, Places, Plan, Sign
from .tools import ANY_OBJECT, Tool, can_follow, read_tools

if TYPE_CHECKING:  # a blank worker imports this, and takes hold of no device
    from ..vocabulary import Vocabulary

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
"""Processor time in which all schemas of a request are looked at; later ones are loosened."""

_KEPT = 8
"""Plans that are kept: a conversation offers the same tools again and again."""

MOST_TOOLS = 1_024
MOST_LETTERS = 65_536
"""Tools of a request, and characters of their names, up to which calls are led: each name is looked
for in free text, and more of them would take many seconds."""

_MOST_OPENINGS = 64
"""From so many on, no token may reach beyond one."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says of the course of its answer."""

    tools: Sequence[Mapping[str, Any]] = ()
    choice: ToolChoice = ToolChoice.AUTO
    tool: str = ""
    """The one that `NAMED` means."""
    think: bool | str | None = None
    budget: int | None = None
    """Tokens of reasoning."""
    constraint: Constraint | None = None

    @classmethod
    def of(cls, body: GenerateBody) -> Wish:
        """What a request says."""
        return cls(
            tools=body.tools,
            choice=body.tool_choice,
            tool=body.tool,
            think=body.think,
            budget=body.reasoning_budget,
            constraint=body.constraint,
        )

    @property
    def must_call(self) -> bool:
        """Whether the answer has to begin with a call."""
        return self.choice in (ToolChoice.REQUIRED, ToolChoice.NAMED)


class GuideMaker:
    """Makes guides for one model. May be used by several threads at a time."""

    def __init__(self, vocabulary: Vocabulary, constraints: ConstraintCompiler) -> None:
        self._vocabulary = vocabulary
        self._constraints = constraints
        self._lock = threading.Lock()
        self._tables: dict[tuple[bytes, ...], TokenTable] = {}
        self._plans: OrderedDict[Any, Plan] = OrderedDict()

    def behind(self, prompt: str, form: Format, wish: Wish) -> AnswerForm | None:
        """What leads the answer to a prompt, of which only the end matters; None where nothing has
        to. Raises `PronkError` for a wish that cannot be fulfilled.
        """
        prompt = prompt.rstrip()
        if form.lead and not prompt.endswith(form.lead.strip()):
            form = replace(form, lead="")
        reasoned = form.reasoning is not None and prompt.endswith(form.reasoning.end.strip())
        return self.make(form, wish, opened=form.opened_by(prompt), reasoned=reasoned)

    def make(
        self, form: Format, wish: Wish, *, opened: bool, reasoned: bool = False
    ) -> AnswerForm | None:
        """The same, told whether the prompt ended within reasoning, or right behind it."""
        thinks = form.reasoning is not None
        tools = _chosen(form, wish)
        budget = wish.budget if thinks else None
        if thinks and wish.think is False:
            budget = 0
        unsaid = wish.think is None and (form.harmony or wish.must_call)
        wanted = bool(wish.think) or unsaid
        reasons = thinks and (opened or (wanted and budget != 0))
        if not (tools or reasons or budget is not None):
            if not wish.constraint:
                return None
            if not form.harmony:
                return self._constraints.compile(wish.constraint)
        elif not (tools or wish.constraint or budget is not None):
            return None
        plan = self._plan(form, wish, tools, may_think=reasons)
        try:
            return Guide(plan, opened=opened and thinks, reasoned=reasoned, budget=budget)
        except ConstraintFailed as error:
            raise PronkError(Code.INVALID_REQUEST, f"format: {error}") from None

    def _plan(self, form: Format, wish: Wish, tools: Sequence[Tool], *, may_think: bool) -> Plan:
        key = (form, repr(tools), wish.choice, wish.constraint, may_think)
        with self._lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = _Planner(self._table(form), self._vocabulary, self._constraints, form, wish).plan(
            tools, may_think=may_think
        )
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > _KEPT:
                self._plans.popitem(last=False)
        return plan

    def _table(self, form: Format) -> TokenTable:
        markers = tuple(sorted({text.encode() for text in form.markers}))
        with self._lock:
            if markers not in self._tables:
                self._tables[markers] = TokenTable(self._vocabulary, markers)
            return self._tables[markers]


def _chosen(form: Format, wish: Wish) -> list[Tool]:
    """The tools that an answer may call. Raises `PronkError`."""
    tools = read_tools(wish.tools)
    if wish.choice is ToolChoice.NAMED:
        tools = [tool for tool in tools if tool.name == wish.tool]
        if not tools:
            raise PronkError(
                Code.INVALID_REQUEST, f"tool_choice: there is no tool {wish.tool!r:.80} in tools"
            )
    if wish.must_call and not (tools and (form.calls or form.harmony)):
        why = "the model does not call tools" if tools else "there are no tools"
        raise PronkError(Code.INVALID_REQUEST, f"tool_choice: {why}")
    return tools if form.calls or form.harmony else []


class _Planner:
    """Makes one plan."""

    def __init__(
        self,
        table: TokenTable,
        vocabulary: Vocabulary,
        constraints: ConstraintCompiler,
        form: Format,
        wish: Wish,
    ) -> None:
        self._table = table
        self._vocabulary = vocabulary
        self._constraints = constraints
        self._form = form
        self._wish = wish
        self._ends = [vocabulary.written(token).decode("utf-8", "replace") for token in table.ends]

    def plan(self, tools: Sequence[Tool], *, may_think: bool) -> Plan:
        """Raises `PronkError` for a form that cannot be followed, or a call that has to be."""
        form, wish = self._form, self._wish
        ways = self._ways(tools)
        if wish.must_call and not ways:
            why = f"more than {MOST_TOOLS} tools, or too long names; name one, or send fewer"
            if not _are_too_many(tools):
                why = "the model has no way to write such a call"
            raise PronkError(Code.INVALID_REQUEST, f"tool_choice: {why}")
        may_call = wish.choice is not ToolChoice.NONE
        content = self._constraints.compile(wish.constraint) if wish.constraint else None
        choices: list[Choice] = []
        if content is not None or wish.must_call:
            choices = self._choices(ways if may_call else [], content, may_think=may_think)
        binds = bool(choices)
        loud = self._places(ways, may_call=may_call, quiet=False)
        quiet = self._places(ways, may_call=may_call, quiet=True)
        closing, last_closing = self._closings(bool(tools))
        lead = harmony.PROMPT if form.harmony else form.lead.strip()
        return Plan(
            self._table,
            loud,
            quiet,
            thought=self._thought(loud, binds),
            closing=closing,
            last_closing=last_closing,
            lead=b"" if form.harmony and binds else lead.encode(),
            choices=tuple(choices),
            may_think=may_think,
            must_call=wish.must_call,
            form=content,
        )

    # Reasoning

    def _thought(self, places: Places, binds: bool) -> Openings[Meaning] | None:
        if self._form.reasoning is None:
            return None

        def allows(rest: bytes) -> bool:
            rest = rest.strip()
            return not rest or (not binds and places.later.search(rest) is None)

        end = self._form.reasoning.end.strip().encode()
        return Openings[Meaning](self._table, [Opening(end, Sign.THOUGHT, allows)])

    def _closings(self, tools: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self._form.reasoning is None:
            return (), ()
        end = self._form.reasoning.end.strip()
        if not self._form.harmony:
            return self._spoken(end), self._spoken(end)
        final = self._spoken(end + harmony.FINAL)
        free = not (tools or self._wish.constraint)
        return (final if free else self._spoken(end)), final

    def _spoken(self, text: str) -> tuple[int, ...]:
        """The tokens of a text; none where one of them ends the answer."""
        tokens = tuple(self._vocabulary.tokenize(text))
        return () if set(tokens) & set(self._table.ends) else tokens

    # Calls

    def _ways(self, tools: Sequence[Tool]) -> list[tuple[Entry, CallWay]]:
        """The ways into calls, with schemas loosened as far as they have to be."""
        if not tools:
            return []
        if _are_too_many(tools):
            _log.warning("calls of %d tools are not constrained: these are too many", len(tools))
            return []
        try:
            return self._compiled_ways(tools)
        except ConstraintFailed:
            _log.info("one of the schemas of tools cannot be enforced as it is")
        except TookTooLong:
            _log.warning("schemas of tools take too long")
        for simpler in (self._checked, _loosened, _anything_goes):
            with suppress(ConstraintFailed, TookTooLong):
                return self._compiled_ways(simpler(tools))
        _log.warning("calls of %d tools cannot be constrained", len(tools))
        return []

    def _compiled_ways(self, tools: Sequence[Tool]) -> list[tuple[Entry, CallWay]]:
        return [
            (entry, CallWay(self._compiled(entry.grammar), entry.strict))
            for entry in self._entries(tools)
        ]

    def _entries(self, tools: Sequence[Tool]) -> list[Entry]:
        if self._form.harmony:
            return harmony.entries(tools, self._ends)
        assert self._form.calls is not None
        others = [self._form.content.start.strip()]
        if self._form.reasoning:
            others += [self._form.reasoning.start, self._form.reasoning.end]
        return calls.entries(self._form.calls, tools, self._ends, others)

    def _checked(self, tools: Sequence[Tool]) -> list[Tool]:
        """The tools, with each schema loosened that llguidance cannot follow in time."""
        followed: list[bool] = []

        def check() -> None:
            for tool in tools:
                followed.append(can_follow(tool.schema, LIMITS))

        try:
            self._constraints.turns.run(check, _CHECK_SECONDS)
        except TookTooLong:
            _log.warning("schemas of tools take too long")
        known = list(followed)
        known += [False] * (len(tools) - len(known))
        return [tool if good else tool.loosened() for tool, good in zip(tools, known, strict=True)]

    def _compiled(self, grammar: str) -> Matcher:
        """Raises `ConstraintFailed` or `TookTooLong`."""
        return self._constraints.turns.run(
            lambda: compiled(self._table, LLMatcher.grammar_from_lark(grammar)), COMPILE_SECONDS
        )

    # Where what may open

    def _places(
        self, ways: Sequence[tuple[Entry, CallWay]], *, may_call: bool, quiet: bool
    ) -> Places:
        reasoning = self._form.reasoning
        thinks: list[Opening[Meaning]] = []
        if reasoning:
            start = reasoning.start.strip()
            if quiet and self._form.harmony:
                start = start.partition("<|message|>")[0]
            meaning = Sign.FORBIDDEN if quiet else Sign.THINKS
            thinks.append(Opening(start.encode(), meaning, _nothing if quiet else _anything))
        first, again, later = list(thinks), list(thinks), list(thinks if self._form.harmony else [])
        for entry, way in ways:
            openings = self._openings(entry, way, may_call)
            if not entry.bare:
                first += openings
                again += openings
                later += openings
            else:
                first += openings if entry.after else []
                again += openings
        return Places(*(Openings[Meaning](self._table, each) for each in (first, again, later)))

    def _openings(self, entry: Entry, way: CallWay, may_call: bool) -> list[Opening[Meaning]]:
        if not may_call:
            return [Opening(text.encode(), Sign.FORBIDDEN, _nothing) for text in entry.openings]
        few = len(entry.openings) < _MOST_OPENINGS
        return [
            Opening(
                text.encode(),
                way,
                self._fitting(way.prototype, text.encode()) if few else _exactly,
            )
            for text in entry.openings
        ]

    def _fitting(self, prototype: Matcher, text: bytes) -> Callable[[bytes], bool]:
        """Whether a call may go on so behind its opening."""
        firsts: dict[bytes, bool] = {}

        def fits(rest: bytes) -> bool:
            tokens = self._table.spell(text + rest)
            return tokens is not None and prototype.accepts(tokens)

        def allows(rest: bytes) -> bool:
            first = rest[:1]
            if first not in firsts:
                firsts[first] = fits(first)
            return firsts[first] and (len(rest) < 2 or fits(rest))

        return allows

    # What has to come

    def _choices(
        self,
        ways: Sequence[tuple[Entry, CallWay]],
        content: Matcher | None,
        *,
        may_think: bool,
    ) -> list[Choice]:
        form = self._form
        head = f"{literal(harmony.PROMPT)}? " if form.harmony else ""
        choices: list[Choice] = []
        if form.reasoning and may_think:
            choices += self._announced(Sign.THINKS, head + literal(form.reasoning.start.strip()))
        if ways:
            _, way = ways[0]
            choices.append(Choice(way, way.prototype))
        if content is not None:
            start = form.content.start.strip()
            if form.harmony:
                start = harmony.FINAL.removeprefix(harmony.PROMPT)
            if start:
                choices += self._announced(Sign.SAYS, head + literal(start))
            else:
                choices.append(Choice(Sign.FORM, content))
        return choices

    def _announced(self, sign: Sign, grammar: str) -> list[Choice]:
        prototype = self._compiled(f"{OPTIONS}start: {grammar} S?\nS: /[ \\t\\r\\n]{{1,16}}/")
        return [Choice(sign, prototype)]


def _are_too_many(tools: Sequence[Tool]) -> bool:
    return len(tools) > MOST_TOOLS or sum(len(tool.name) for tool in tools) > MOST_LETTERS


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    return [tool.loosened() for tool in tools]


def _anything_goes(tools: Sequence[Tool]) -> list[Tool]:
    return [Tool(tool.name, ANY_OBJECT) for tool in tools]


def _nothing(rest: bytes) -> bool:
    return False


def _anything(rest: bytes) -> bool:
    return True


def _exactly(rest: bytes) -> bool:
    return not rest
