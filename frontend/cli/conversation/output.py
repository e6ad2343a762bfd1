"""An answer on its way to the terminal, or into a pipe."""

from __future__ import annotations

import shutil
import sys

from ..terminal import is_capable, is_terminal, printable, say
from ..wording import duration
from .wrapping import Wrapping

THINKING = "Thinking..."
DONE_THINKING = "...done thinking."

_MEASURES = (
    ("prompt eval", "prompt_eval_count", "prompt_eval_duration"),
    ("eval", "eval_count", "eval_duration"),
)
_LABEL = 22


class Output:
    """Prints one answer as it comes, each piece at once."""

    def __init__(self, wraps: bool, hides_thinking: bool = False) -> None:
        wraps = wraps and is_capable(sys.stdout)
        self._wrapping = Wrapping(lambda: shutil.get_terminal_size().columns) if wraps else None
        self._hides_thinking = hides_thinking
        self._thinks = False
        self._written = False
        self._last = "\n"

    def thought(self, text: str) -> None:
        """What the model thinks before it answers."""
        if not text or self._hides_thinking:
            return
        if not self._thinks:
            self._thinks = True
            self._write(f"{THINKING}\n")
        self._write(text)

    def text(self, text: str) -> None:
        """A piece of the answer."""
        if not text:
            return
        self._end_thinking()
        self._write(text)

    def close(self) -> None:
        """Ends the last line."""
        self._end_thinking()
        if not self._written:
            return
        if self._last != "\n":
            say()
        if is_terminal(sys.stdout):
            say()  # room before what comes next
        self._written = False

    def _end_thinking(self) -> None:
        if self._thinks:
            self._thinks = False
            self._write(("" if self._last == "\n" else "\n") + f"{DONE_THINKING}\n\n")

    def _write(self, text: str) -> None:
        self._last, self._written = text[-1], True
        if self._wrapping is None:
            say(text, end="")
            return
        # Made safe before it is wrapped: wrapping adds commands of its own.
        sys.stdout.write(self._wrapping.wrap(printable(text)))
        sys.stdout.flush()


def summary(last: object) -> str:
    """How long an answer took, from its last object."""
    lines = [
        _line("total duration", duration(_number(last, "total_duration"))),
        _line("load duration", duration(_number(last, "load_duration"))),
    ]
    for name, count_field, time_field in _MEASURES:
        count, time = _number(last, count_field), _number(last, time_field)
        lines.append(_line(f"{name} count", f"{count} token(s)"))
        lines.append(_line(f"{name} duration", duration(time)))
        if time:
            lines.append(_line(f"{name} rate", f"{count / time * 1e9:.2f} tokens/s"))
    return "\n".join(lines)


def _line(name: str, value: str) -> str:
    return f"{name}:".ljust(_LABEL) + value


def _number(last: object, name: str) -> int:
    return int(getattr(last, name, 0) or 0)
