"""Structured output: which tokens may come next, so that an answer has the form asked for.

llguidance reads the grammar and says after each token which ones can follow. A grammar is compiled
before its request enters the batch, in a thread of its own that is given up when it takes too long.
"""

from __future__ import annotations

import threading
import time
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from ...protocol.messages.generation import Constraint
from .bounded import TookTooLong, Turns
from .grammars import build_grammar, refusal
from .token_table import TokenTable

if TYPE_CHECKING:  # a blank worker imports this, and takes hold of no device
    from .vocabulary import Vocabulary

COMPILE_SECONDS = 1.0
"""Processor time that compiling one grammar may take."""

MASK_BURST = 0.5
MASK_PER_TOKEN = 0.004
"""Seconds of processor time that the masks of one answer may take: so much in all, and so much more
for each token. All others in the batch wait meanwhile; usual masks take 10 µs."""

LIMITS = LLParserLimits(
    max_items_in_row=10_000,
    step_lexer_fuel=100_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)


class ConstraintFailed(Exception):
    """An answer cannot go on in its form. Its text says why and is fit for the client."""


class Matcher:
    """Follows one answer through its grammar. Belongs to one thread at a time."""

    forced: int | None = None
    """No token is ever put into the model's mouth: masks do all."""

    def __init__(self, table: TokenTable, grammar: str) -> None:
        """Compiles `grammar` and computes the first mask, which takes longer than later ones.

        Raises `ConstraintFailed` where no answer has this form or a limit is passed.
        """
        self._table = table
        self._mask = table.empty_mask()
        self._address = self._mask.ctypes.data
        self._allowance = MASK_BURST
        self._matcher = LLMatcher(table.tokenizer, grammar, limits=LIMITS, log_level=0)
        self._raise_error()
        self._compute()
        self._is_current = True

    @property
    def finished(self) -> bool:
        """Whether the form is complete, so that nothing but the answer's end can follow."""
        return self._matcher.is_stopped()

    @property
    def complete(self) -> bool:
        """Whether what came has the form already; more may still follow."""
        return self._matcher.is_accepting()

    def copy(self) -> Matcher:
        """Another one at the same place, for another thread if need be."""
        other = copy(self)
        other._mask = self._mask.copy()
        other._address = other._mask.ctypes.data
        other._matcher = self._matcher.deep_copy()
        return other

    def accepts(self, tokens: list[int]) -> bool:
        """Whether these can follow one after the other. Nothing is taken."""
        return self._matcher.validate_tokens(tokens) == len(tokens)

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lowers to −∞, in place, the logits of all tokens that cannot follow. NaN stays NaN.

        Raises `ConstraintFailed` when none can, or when finding out takes too long.
        """
        self._table.lower(logits, self.mask())

    def mask(self) -> NDArray[np.uint8]:
        """A bit for each token that can follow. Raises as `apply` does."""
        if not self._is_current:
            began = time.thread_time()
            self._compute()
            self._is_current = True
            self._allowance += MASK_PER_TOKEN - (time.thread_time() - began)
            if self._allowance < 0:
                raise ConstraintFailed("it takes too long to follow; simplify it")
        return self._mask

    def accept(self, token: int) -> None:
        """Takes the next token of the answer. Raises `ConstraintFailed` for one that cannot be."""
        self._is_current = False
        try:
            accepted = self._matcher.consume_token(token)
        except BaseException as error:
            raise _translated(error) from None
        if not accepted:
            self._raise_error()
            raise ConstraintFailed("a token was chosen that does not belong there")

    def _compute(self) -> None:
        try:
            self._matcher.unsafe_compute_mask_ptr(self._address, self._mask.nbytes)
        except BaseException as error:
            raise _translated(error) from None
        self._raise_error()
        self._mask &= self._table.usable
        if not self._mask.any():
            raise ConstraintFailed("nothing can follow")

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise ConstraintFailed(_sentence(self._matcher.get_error()))


class ConstraintCompiler:
    """Compiles constraints for one model. May be used from any thread, beside its engine."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._table: TokenTable | None = None
        self.turns = Turns()

    @property
    def table(self) -> TokenTable:
        """The first call reads the vocabulary: a second for 152,000 tokens."""
        with self._lock:
            if self._table is None:
                self._table = TokenTable(self._vocabulary)
            return self._table

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of an answer.

        Raises `PronkError` with the reason: INVALID_REQUEST where the constraint cannot be compiled
        or takes too long.
        """
        grammar = build_grammar(constraint)
        table = self.table
        try:
            return self.turns.run(lambda: compiled(table, grammar), COMPILE_SECONDS)
        except TookTooLong:
            raise refusal("it takes too long to compile; simplify it") from None
        except ConstraintFailed as error:
            raise refusal(f"it cannot be compiled: {error}") from None


def compiled(table: TokenTable, grammar: str) -> Matcher:
    """A matcher at the beginning. Raises `ConstraintFailed`, whatever llguidance raises."""
    try:
        return Matcher(table, grammar)
    except BaseException as error:
        raise _translated(error) from None


def _translated(error: BaseException) -> BaseException:
    """The failure that a panic of llguidance means: in Python it is no `Exception`."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, ConstraintFailed)):
        return error
    return ConstraintFailed(_sentence(str(error)))


def _sentence(reason: str) -> str:
    """The reason that llguidance gave, in one line and without what only its authors can read."""
    if reason.startswith("panic"):
        return "it is too large"
    if reason.startswith("NoExtension"):
        return "nothing can follow"
    return " ".join(reason.replace("<non-verbose/>", "").split())[:300]
