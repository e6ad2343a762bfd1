"""Follows one answer and says, token by token, what may come next.

Where text is free, all that happens is a look at the text of each token: masks are computed only
within a call, or where the request wants a form. What an answer may be depends on its tokens alone,
so one that is continued by another process is led as it would have been led here.
"""

from __future__ import annotations

import codecs
import logging
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..constraints import ConstraintFailed, Matcher
from ..token_table import SPACE
from .openings import Found, Openings
from .plan import CallWay, Meaning, Plan, Sign

_log = logging.getLogger(__name__)

_NEVER = np.float32(-np.inf)

_MOST_SPACE = 4
"""Tokens of white space before a form begins."""


_ANYTHING = b"~;"
_NEVER_QUOTED = b"\x01"
"""Texts that tell apart: a value between quotes may have the first, one without quotes both, a name
or an id neither."""

_CHARACTER = 4
"""Tokens that a character may take."""


class _Mode(Enum):
    THINKS = 1
    """It reasons."""
    BEGINS = 2
    """Nothing was said yet, or nothing since reasoning or a call."""
    SPEAKS = 3
    """Free text."""
    CHOOSES = 4
    """One of several things has to come."""
    CALLS = 5
    """Within a call."""
    FORMED = 6
    """Within what has a form."""


@dataclass(slots=True)
class _Way:
    """A choice, as far as it was followed."""

    meaning: Meaning
    matcher: Matcher


class Guide:
    """Leads one answer. Belongs to one thread at a time."""

    def __init__(
        self, plan: Plan, *, opened: bool, reasoned: bool = False, budget: int | None = None
    ) -> None:
        """`opened`: whether the prompt ended within reasoning, `reasoned`: right behind it.
        `budget`: the tokens that reasoning may have before its end is put behind it.
        """
        self._plan = plan
        self._table = plan.table
        self._budget = budget
        self._thought = 0
        self._closings = 0
        self._places = plan.places if budget is None or budget > 0 else plan.quiet
        self._may_think = plan.may_think and (budget is None or budget > 0)
        self._queue: list[int] = []
        self._tail = b""
        self._openings = self._places.first
        self._called = False
        self._reasoned = reasoned
        self._spaces = 0
        self._ways: list[_Way] = []
        self._matcher: Matcher | None = None
        self._strict = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._mode = _Mode.BEGINS
        if opened and plan.thought is not None:
            self._mode = _Mode.THINKS
            self._watch_budget()
        else:
            self._begin(plan.lead)

    @property
    def forced(self) -> int | None:
        """The token that comes next, whatever the model says."""
        return self._queue[0] if self._queue else None

    @property
    def masks(self) -> bool:
        """Whether `apply` computes something at this place."""
        return self._mode in (_Mode.CHOOSES, _Mode.CALLS, _Mode.FORMED)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lowers to −∞, in place, what may not come next. Raises `ConstraintFailed`."""
        match self._mode:
            case _Mode.SPEAKS:
                wrong = self._places.later.wrong_after(self._tail)
            case _Mode.BEGINS:
                wrong = self._openings.wrong_after(self._tail)
            case _Mode.THINKS:
                wrong = self._thought_end.wrong_after(self._tail)
                if self._plan.binds:
                    logits[self._table.ends] = _NEVER
            case _Mode.CALLS:
                self._apply_call(logits)
                return
            case _Mode.CHOOSES:
                self._table.lower(logits, self._mask())
                return
            case _Mode.FORMED:
                assert self._matcher is not None
                self._matcher.apply(logits)
                return
        if len(wrong):
            logits[wrong] = _NEVER

    def accept(self, token: int) -> None:
        """Takes the next token of the answer. Raises `ConstraintFailed` for one that cannot be."""
        if self._queue:
            if token == self._queue[0]:
                del self._queue[0]
            else:  # another process had led it otherwise
                self._queue.clear()
        text = self._table.tokens[token]
        if not text and token in self._table.ends:
            return
        match self._mode:
            case _Mode.SPEAKS:
                self._speak(text)
            case _Mode.BEGINS:
                self._go_on(text)
            case _Mode.THINKS:
                self._thought += 1
                self._think(text)
            case _Mode.CALLS:
                self._call(token)
            case _Mode.CHOOSES:
                self._choose(token, text)
            case _Mode.FORMED:
                assert self._matcher is not None
                self._matcher.accept(token)

    # Reasoning

    @property
    def _thought_end(self) -> Openings[Meaning]:
        assert self._plan.thought is not None
        return self._plan.thought

    def _think(self, text: bytes) -> None:
        self._decoder.decode(text)
        whole = self._tail + text
        found = self._thought_end.search(whole)
        if found:
            self._decoder.reset()
            self._reasoned = True
            self._begin(found.after)
            return
        self._tail = self._thought_end.end_of(whole)
        self._watch_budget()

    def _watch_budget(self) -> None:
        """Ends reasoning that has used up what it may, at the end of a character."""
        plan = self._plan
        if self._budget is None or self._thought < self._budget or self._queue:
            return
        within = self._decoder.getstate()[0] and self._thought < self._budget + _CHARACTER
        if self._closings < 2 and not within:
            self._queue += plan.last_closing if self._closings else plan.closing
            self._closings += 1
            self._places = plan.quiet
            self._may_think = False

    # What is said

    def _begin(self, text: bytes) -> None:
        """At the beginning of what is said, or behind reasoning or a call."""
        plan = self._plan
        self._tail = b""
        self._mode = _Mode.BEGINS
        self._openings = self._places.again if self._called else self._places.first
        if plan.form is not None or (plan.must_call and not self._called):
            self._start_choosing(text)
        else:
            self._go_on(text)

    def _go_on(self, text: bytes) -> None:
        """Looks at text where nothing was said yet."""
        text = (self._tail + text).lstrip()
        if found := self._openings.match(text):
            self._open(found)
        elif not text or self._openings.begins(text):
            self._tail = text
        else:
            self._mode = _Mode.SPEAKS
            self._tail = b""
            self._speak(text)

    def _speak(self, text: bytes) -> None:
        later = self._places.later
        if not self._tail and not later.suspects(text):
            return
        text = self._tail + text
        if found := later.search(text):
            self._open(found)
        else:
            self._tail = later.end_of(text)

    def _open(self, found: Found[Meaning]) -> None:
        self._tail = b""
        meaning = found.opening.meaning
        if isinstance(meaning, CallWay):
            matcher = meaning.prototype.copy()
            if self._feed(matcher, found.opening.text + found.after):
                self._enter(meaning, matcher)
                return
        elif meaning is Sign.THINKS:
            self._mode = _Mode.THINKS
            self._think(found.after)
            return
        self._mode = _Mode.SPEAKS
        self._speak(found.after)

    def _feed(self, matcher: Matcher, text: bytes) -> bool:
        """Whether a matcher takes a text."""
        tokens = self._table.spell(text)
        if tokens is None or not matcher.accepts(tokens):
            return False
        for token in tokens:
            matcher.accept(token)
        return True

    # Calls

    def _enter(self, way: CallWay, matcher: Matcher) -> None:
        self._mode = _Mode.CALLS
        self._matcher = matcher
        self._strict = way.ends_answer
        self._leave_if_complete()

    def _call(self, token: int) -> None:
        assert self._matcher is not None
        try:
            self._matcher.accept(token)
        except ConstraintFailed as error:
            self._let_go(error)
            return
        self._leave_if_complete()

    def _leave_if_complete(self) -> None:
        assert self._matcher is not None
        if self._matcher.complete and not self._strict:
            self._matcher = None
            self._called = True
            self._begin(b"")

    def _apply_call(self, logits: NDArray[np.float32]) -> None:
        assert self._matcher is not None
        try:
            mask = self._matcher.mask()
            if self._table.signals is not None and self._is_within_text():
                mask = mask & ~self._table.signals
        except ConstraintFailed as error:
            self._let_go(error)
            return
        self._table.lower(logits, mask)

    def _is_within_text(self) -> bool:
        """Whether a value between quotes goes on here: a marker there is a mistake, where that of
        the end of a text without quotes is none.
        """
        assert self._matcher is not None
        anything, never_quoted = (self._table.spell(text) for text in (_ANYTHING, _NEVER_QUOTED))
        if anything is None or never_quoted is None or not self._matcher.accepts(anything):
            return False
        return not self._matcher.accepts(never_quoted)

    def _let_go(self, error: ConstraintFailed) -> None:
        """Goes on freely: a call that cannot be followed is no reason to lose the answer."""
        _log.warning("a call is not constrained any more: %s", error)
        self._matcher = None
        self._mode = _Mode.SPEAKS

    # What has a form

    def _start_choosing(self, text: bytes) -> None:
        plan = self._plan
        self._mode = _Mode.CHOOSES
        behind = self._called or self._reasoned
        self._spaces = 0 if behind else _MOST_SPACE  # only there nobody sees it
        text = text.lstrip()
        ways = [_Way(choice.meaning, choice.prototype.copy()) for choice in plan.choices]
        ways = [way for way in ways if self._is_open(way.meaning)]
        self._ways = [way for way in ways if not text or self._feed(way.matcher, text)]
        if not self._ways:
            raise ConstraintFailed("nothing can follow")
        if text:
            self._spaces = _MOST_SPACE
            self._settle()

    def _is_open(self, meaning: Meaning) -> bool:
        if meaning is Sign.THINKS:
            return self._may_think
        if isinstance(meaning, CallWay):
            return True
        return not self._plan.must_call or self._called

    def _mask(self) -> NDArray[np.uint8]:
        masks = [way.matcher.mask() for way in self._ways]
        mask = masks[0].copy()
        for each in masks[1:]:
            mask |= each
        if self._spaces < _MOST_SPACE:
            mask |= self._table.spaces
        if self._called:
            mask |= self._table.ending
        return mask

    def _choose(self, token: int, text: bytes) -> None:
        ways = [way for way in self._ways if way.matcher.accepts([token])]
        if not ways:
            if self._spaces < _MOST_SPACE and not text.strip(SPACE):
                self._spaces += 1
                return
            raise ConstraintFailed("a token was chosen that does not belong there")
        for way in ways:
            way.matcher.accept(token)
        self._ways = ways
        self._spaces = _MOST_SPACE
        self._settle()

    def _settle(self) -> None:
        """Goes on with what was chosen, as soon as that is clear."""
        for way in self._ways:
            alone = len(self._ways) == 1
            done = way.matcher.complete
            match way.meaning:
                case CallWay() if alone or done:
                    self._enter(way.meaning, way.matcher)
                case Sign.THINKS if done:
                    self._mode = _Mode.THINKS
                    self._tail = b""
                case Sign.SAYS if done:
                    assert self._plan.form is not None
                    self._matcher, self._mode = self._plan.form.copy(), _Mode.FORMED
                case Sign.FORM if alone:
                    self._matcher, self._mode = way.matcher, _Mode.FORMED
                case _:
                    continue
            self._ways = []
            return
