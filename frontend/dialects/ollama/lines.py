"""Generations as Ollama writes them: one JSON object a line, or one for all.

Built from fixed parts around the text, because this runs for every token of every stream. What the
model thinks and calls stands beside the text, which is empty in such a line.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import orjson

from ....protocol.messages.generation import (
    Kind,
    PositionLogprobs,
    TokenLogprob,
    ToolCall,
)
from ...operations.generation import Completion, Output
from ...stream import Piece, Thinking

_SECOND = 1_000_000_000


class _Clock:
    """The time of day as Ollama writes it, put together anew only once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self) -> str:
        second, fraction = divmod(time.time_ns(), _SECOND)
        if second != self._second:
            self._second = second
            self._text = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._text}.{fraction:09d}Z"


created_at = _Clock()
"""The time now, RFC 3339 in UTC with nanoseconds."""


class Lines:
    """Writes the answer to one request. `model` is the name that the client sent."""

    def __init__(self, kind: Kind, model: str) -> None:
        self._head = b'{"model":%s,"created_at":"' % orjson.dumps(model)
        if kind is Kind.CHAT:
            self._before, self._after = b'","message":{"role":"assistant","content":', b"}"
        else:
            self._before, self._after = b'","response":', b""
        self._end_of_piece = self._after + b',"done":false}\n'
        self._calls = 0
        """So far."""

    def lines(self, output: Output) -> bytes:
        """A line for each piece, and the last line where the end has come.

        What was ready at once is written at once, and what is text alone has one time.
        """
        parts: list[bytes] = []
        if output.logprobs is None and output.mixed:
            parts += map(self._line, output.pieces)
        elif output.logprobs is None:
            if output.pieces:
                opening = self._opening()
                between = b"%s%s" % (self._end_of_piece, opening)
                parts += (
                    opening,
                    between.join(map(orjson.dumps, output.pieces)),
                    self._end_of_piece,
                )
        else:
            parts += map(self._line_with, output.pieces, output.logprobs)
        if output.completion:
            parts.append(self.whole("", output.completion))
        return b"".join(parts)

    def whole(
        self,
        text: str,
        completion: Completion,
        logprobs: list[PositionLogprobs] | None = None,
        *,
        thinking: str = "",
        calls: list[ToolCall] | None = None,
    ) -> bytes:
        """The object that ends an answer, with what it says in it."""
        accounts: dict[str, object] = {"done": True, "done_reason": completion.reason.value}
        if completion.context is not None:
            accounts["context"] = completion.context
        if logprobs:
            accounts["logprobs"] = _logprobs(logprobs)
        accounts |= {
            "total_duration": completion.total_duration,
            "load_duration": completion.load_duration,
            "prompt_eval_count": completion.prompt_eval_count,
            "prompt_eval_duration": completion.prompt_eval_duration,
            "eval_count": completion.eval_count,
            "eval_duration": completion.eval_duration,
        }
        opening = self._opening() + self._message(text, thinking, calls or [])
        return b"%s%s,%s\n" % (opening, self._after, orjson.dumps(accounts)[1:])

    def notice(self, reason: str) -> bytes:
        """The answer to a request without a prompt: `load` or `unload` is done."""
        ending = orjson.dumps({"done": True, "done_reason": reason})[1:]
        return b'%s""%s,%s\n' % (self._opening(), self._after, ending)

    def _line(self, piece: Piece) -> bytes:
        return self._open(piece) + self._end_of_piece

    def _line_with(self, piece: Piece, logprobs: list[PositionLogprobs]) -> bytes:
        if not logprobs:
            return self._line(piece)
        ending = orjson.dumps({"done": False, "logprobs": _logprobs(logprobs)})[1:]
        return b"%s%s,%s\n" % (self._open(piece), self._after, ending)

    def _open(self, piece: Piece) -> bytes:
        """A line up to the end of what is said."""
        match piece:
            case str():
                said = orjson.dumps(piece)
            case Thinking(text):
                said = b'"","thinking":' + orjson.dumps(text)
            case _:
                said = self._message("", "", piece)
        return self._opening() + said

    def _message(self, text: str, thinking: str, calls: list[ToolCall]) -> bytes:
        """What is said, from the text on."""
        said = orjson.dumps(text)
        if thinking:
            said += b',"thinking":' + orjson.dumps(thinking)
        if calls:
            written = [_call(call, self._calls + index) for index, call in enumerate(calls)]
            self._calls += len(calls)
            said += b',"tool_calls":' + orjson.dumps(written)
        return said

    def _opening(self) -> bytes:
        """A line up to its text."""
        return b"%s%s%s" % (self._head, created_at().encode(), self._before)


def _call(call: ToolCall, index: int) -> dict[str, object]:
    function = {"index": index, "name": call.name, "arguments": call.arguments}
    return {"id": call.id, "function": function} if call.id else {"function": function}


def _logprobs(positions: list[PositionLogprobs]) -> list[dict[str, object]]:
    """As Ollama writes them: `top_logprobs` only where some were asked for."""
    written: list[dict[str, object]] = []
    for position in positions:
        token = _logprob(position.chosen)
        if position.top:
            token["top_logprobs"] = [_logprob(other) for other in position.top]
        written.append(token)
    return written


def _logprob(token: TokenLogprob) -> dict[str, object]:
    return {
        "token": token.piece.decode("utf-8", "replace"),
        "logprob": token.logprob,
        "bytes": list(token.piece),
    }
