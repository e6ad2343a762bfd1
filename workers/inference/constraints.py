"""Structured output: which tokens may come next, so that an answer has the form asked for.

llguidance reads the grammar and says after each token which ones can follow. A grammar is compiled
before its request enters the batch, in a thread of its own that is given up when it takes too long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from llguidance import LLMatcher, LLParserLimits
from numpy.typing import NDArray

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import Constraint
from .grammars import build_grammar, refusal
from .token_table import TokenTable
from .vocabulary import Vocabulary

COMPILE_SECONDS = 1.0
"""Processor time that compiling one grammar may take."""

MASK_BURST = 0.5
MASK_PER_TOKEN = 0.004
"""Seconds of processor time that the masks of one answer may take: so much in all, and so much more
for each token. All others in the batch wait meanwhile; usual masks take 10 µs."""

_STACK = 256 * 2**20
"""Bytes of address space: llguidance recurses along chains of references and rules."""

_MOST_COMPILING = 4
"""Grammars at a time, those given up among them."""

_PATIENCE = 20.0
"""Seconds that a grammar waits for its turn among them."""

_LIMITS = LLParserLimits(
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

    def __init__(self, table: TokenTable, grammar: str) -> None:
        """Compiles `grammar` and computes the first mask, which takes longer than later ones.

        Raises `ConstraintFailed` where no answer has this form or a limit is passed.
        """
        self._table = table
        self._mask = table.empty_mask()
        self._address = self._mask.ctypes.data
        self._allowance = MASK_BURST
        self._matcher = LLMatcher(table.tokenizer, grammar, limits=_LIMITS, log_level=0)
        self._raise_error()
        self._compute()
        self._is_current = True

    @property
    def finished(self) -> bool:
        """Whether the form is complete, so that nothing but the answer's end can follow."""
        return self._matcher.is_stopped()

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lowers to −∞, in place, the logits of all tokens that cannot follow. NaN stays NaN.

        Raises `ConstraintFailed` when none can, or when finding out takes too long.
        """
        if not self._is_current:
            began = time.thread_time()
            self._compute()
            self._is_current = True
            self._allowance += MASK_PER_TOKEN - (time.thread_time() - began)
            if self._allowance < 0:
                raise ConstraintFailed("it takes too long to follow; simplify it")
        self._table.lower(logits, self._mask)

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
        self._turns = threading.BoundedSemaphore(_MOST_COMPILING)

    def compile(self, constraint: Constraint) -> Matcher:
        """A matcher at the beginning of an answer.

        The first call also reads the vocabulary: a second for 152,000 tokens. Raises `PronkError`
        with the reason: INVALID_REQUEST where the constraint cannot be compiled or takes too long.
        """
        grammar = build_grammar(constraint)
        if not self._turns.acquire(timeout=_PATIENCE):
            raise PronkError(
                Code.UNAVAILABLE,
                "too many formats are being compiled; try again",
                retry_after=2.0,
            )
        try:
            thread = self._start(grammar)
        except BaseException:
            self._turns.release()
            raise
        return thread.matcher()

    def _start(self, grammar: str) -> _Compiling:
        with self._lock:
            if self._table is None:
                self._table = TokenTable(self._vocabulary)
            thread = _Compiling(self._table, grammar, self._turns.release)
            usual = threading.stack_size(_STACK)
            try:
                thread.start()
            finally:
                threading.stack_size(usual)
        return thread


class _Compiling(threading.Thread):
    """Compiles one grammar. llguidance lets go of Python's lock, so nothing waits for it but us."""

    def __init__(self, table: TokenTable, grammar: str, on_end: Callable[[], None]) -> None:
        super().__init__(name="grammar", daemon=True)
        self._on_end = on_end
        self._table = table
        self._grammar = grammar
        self._clock: Callable[[], float] | None = None
        self._matcher: Matcher | None = None
        self._reason = ""

    def run(self) -> None:
        self._clock = _own_clock()
        try:
            self._matcher = Matcher(self._table, self._grammar)
        except ConstraintFailed as error:
            self._reason = str(error)
        except BaseException as error:
            self._reason = str(_translated(error))
        finally:
            self._on_end()

    def matcher(self) -> Matcher:
        """Waits for the result. Raises `PronkError` where there is none, or none in time."""
        while self.is_alive() and self._used() < COMPILE_SECONDS:
            self.join(0.02)
        if self.is_alive():
            raise refusal("it takes too long to compile; simplify it")
        if self._matcher is None:
            raise refusal(f"it cannot be compiled: {self._reason}")
        return self._matcher

    def _used(self) -> float:
        """Seconds of processor time so far: waiting on a busy machine does not count."""
        if self._clock is not None:
            with suppress(OSError):  # the thread has just ended
                return self._clock()
        return 0.0


def _own_clock() -> Callable[[], float]:
    """This thread's processor time, for any thread to read; on macOS the time since now."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    began = time.monotonic()
    return lambda: time.monotonic() - began


def _translated(error: BaseException) -> BaseException:
    """The failure that a panic of llguidance means: in Python it is no `Exception`."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        return error
    return ConstraintFailed(_sentence(str(error)))


def _sentence(reason: str) -> str:
    """The reason that llguidance gave, in one line and without what only its authors can read."""
    if reason.startswith("panic"):
        return "it is too large"
    if reason.startswith("NoExtension"):
        return "nothing can follow"
    return " ".join(reason.replace("<non-verbose/>", "").split())[:300]
