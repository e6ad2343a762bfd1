"""Answers that are messages on channels, as gpt-oss writes them.

    <|channel|>analysis<|message|>thinking<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

This cannot be read from differences: the template writes the recipient of an earlier call in
another place of the header than the model does, and leaves out most of the reasoning.
"""

from __future__ import annotations

import re

from .said import Call, Content, Said, Thinking
from .values import NotAValue, load

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_END = re.compile("|".join(map(re.escape, _ENDS)))
_LONGEST_END = max(map(len, _ENDS))
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_HEADER = 512
"""Longest header, in characters."""


def is_harmony(prompt: str, answer: str) -> bool:
    """Whether a template that writes such a prompt, and such an answer behind it, is for them."""
    announced = answer.lstrip().startswith("<|channel|>") and _MESSAGE in answer
    return prompt.endswith("<|start|>assistant") and announced


class HarmonyParser:
    """Interprets one such answer."""

    def __init__(self) -> None:
        self._text = ""
        self._header: str | None = ""
        """What stands before the message, as far as it came; None within a message."""
        self._call: str | None = None
        self._thinks = False
        self._ended = False
        self._searched = 0
        """Up to where the message has none of its ends."""
        self._silent = True
        """Whether nothing but white space has come."""

    def push(self, text: str) -> list[Said]:
        """What is certain after this piece."""
        self._text += text
        self._silent = self._silent and not text.strip()
        said: list[Said] = []
        while self._step(said):
            pass
        return said

    def finish(self) -> list[Said]:
        """What was held back."""
        self._ended = True
        said = self.push("")
        if self._header is None and self._call is not None:
            self._finish_call(said)
        elif self._header is not None:
            blank = self._silent and not self._text.strip()  # the whole answer
            self._tell(self._text if blank else _text_of(self._text), said)
        self._text = ""
        return said

    def _step(self, said: list[Said]) -> bool:
        return self._read_header() if self._header is not None else self._read_message(said)

    def _read_header(self) -> bool:
        at = self._text.find(_MESSAGE)
        if (
            not self._begins_header()
            or (at if at >= 0 else len(self._text) - len(_MESSAGE)) > _HEADER
        ):
            # The model left the header out: what it says is for the reader.
            self._header, self._call, self._thinks = None, None, False
            return True
        if at < 0:
            return False
        header, self._text = self._text[:at], self._text[at + len(_MESSAGE) :]
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._header = None
        self._call = recipient[1] if recipient else None
        self._thinks = bool(channel and channel[1] == "analysis") and self._call is None
        return True

    def _begins_header(self) -> bool:
        """Whether this may be a header, or the beginning of one."""
        rest = self._text.lstrip()
        begins = ("<|channel|>", "<|start|>", "<|constrain|>", _MESSAGE, "to=", *_ENDS)
        return any(rest.startswith(each) or each.startswith(rest) for each in begins)

    def _read_message(self, said: list[Said]) -> bool:
        found = _END.search(self._text, self._searched)
        self._searched = 0 if found else max(0, len(self._text) - _LONGEST_END)
        if found:
            at, end = found.start(), found[0]
            body = self._text[:at]
            keeps = end in ("<|start|>", "<|channel|>")
            rest = self._text[at if keeps else at + len(end) :]
            if self._call is None:
                self._tell(body, said)
                self._text = rest
            else:
                self._text = body
                self._finish_call(said)
                self._text = rest
            self._header, self._call, self._thinks = "", None, False
            return True
        if self._call is not None:
            return False
        keep = len(self._text)
        if not self._ended:
            for length in range(min(_LONGEST_END - 1, keep), 0, -1):
                if any(end.startswith(self._text[keep - length :]) for end in _ENDS):
                    keep -= length
                    break
        self._tell(self._text[:keep], said)
        self._text, self._searched = self._text[keep:], 0
        return False

    def _finish_call(self, said: list[Said]) -> None:
        try:
            arguments = load(self._text, ended=not self._ended) if self._text.strip() else {}
        except NotAValue:
            arguments = None
        if isinstance(arguments, dict) and self._call:
            said.append(Call(self._call, arguments))
        elif self._text:
            said.append(Content(self._text))
        self._text = ""

    def _tell(self, text: str, said: list[Said]) -> None:
        if text:
            said.append(Thinking(text) if self._thinks else Content(text))


def _text_of(rest: str) -> str:
    """What is left when an answer ends within a header: nothing of a header is shown."""
    return "" if rest.lstrip().startswith("<|") or "<|".startswith(rest.strip()) else rest
