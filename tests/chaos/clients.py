"""Clients that read every byte of their answers and judge them.

Raw HTTP/1.1 on a connection of its own for each request: whether an answer was whole is seen in its
chunks, and which process served it is known by the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from chaos.questions import Question

BLAME = {
    re.compile(r"died \d+ times in a row"): 2,
    re.compile(r"could not be loaded.*the worker process died over it"): 3,
}
"""What a request may be told that was unlucky, and how many workers have to be killed for that."""

SILENCE = 90.0
"""Seconds without a byte after which an answer counts as one that never ends."""


class Ending(Enum):
    """How a request ended."""

    RIGHT = "right"
    FRONTEND_DIED = "broken by the death of their frontend"
    """The one loss that is allowed: whoever accepted a request owns it."""
    BLAMED = "given up: their workers were killed again and again"
    """By design: nobody can tell such a request from one that kills its workers."""
    WRONG = "WRONG: another text or count"
    ERROR = "ERROR: an error in place of the answer, or behind its beginning"
    BROKEN = "BROKEN: no end, and its frontend lives"
    SILENT = f"SILENT: nothing more for {SILENCE:g} s"


@dataclass
class Request:
    """One request on its way."""

    question: Question
    began: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    port: int = 0
    """The client's."""
    status: int = 0
    text: str = ""
    final: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    pause: float = 0.0
    """The longest wait between two of its pieces."""
    first: float = 0.0
    """Monotonic time of its first piece."""
    last: float = 0.0

    def take(self, line: bytes) -> None:
        """Takes one object of the answer over."""
        now = time.monotonic()
        if self.first:
            self.pause = max(self.pause, now - self.last)
        else:
            self.first = now
        self.last = now
        piece = json.loads(line)
        if "error" in piece:
            self.error = str(piece["error"])
            return
        message = piece.get("message")
        self.text += message["content"] if message else piece["response"]
        if piece["done"]:
            self.final = piece

    def judge(self) -> tuple[Ending, str]:
        """How it ended, and what is wrong with that, for an answer whose connection is whole."""
        question = self.question
        if self.status != 200 or self.error:
            return Ending.ERROR, f"{self.status} {self.error}"
        if not self.final:
            return Ending.BROKEN, "the last object says nothing of an end"
        if self.text != question.text:
            return Ending.WRONG, _difference(self.text, question.text)
        for name in ("eval_count", "prompt_eval_count"):
            if self.final[name] != getattr(question, name):
                return Ending.WRONG, f"{name} {self.final[name]}, not {getattr(question, name)}"
        return Ending.RIGHT, ""


def _difference(text: str, right: str) -> str:
    same = 0
    while text[: same + 1] == right[: same + 1] and same < len(text):
        same += 1
    return (
        f"{len(text)} characters instead of {len(right)}, another one at {same}: "
        f"{text[max(same - 10, 0) : same + 20]!r} instead of "
        f"{right[max(same - 10, 0) : same + 20]!r}"
    )


async def ask(port: int, question: Question) -> Request:
    """Reads the whole answer. Raises OSError, EOFError or TimeoutError where it has no end."""
    request = Request(question)
    async with asyncio.timeout(SILENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    request.port = writer.get_extra_info("sockname")[1]
    try:
        await _exchange(request, reader, writer)
    except Exception as error:
        raise Unfinished(request, error) from error
    finally:
        request.ended = time.monotonic()
        writer.close()
    return request


class Unfinished(Exception):
    """A connection that ended before its answer."""

    def __init__(self, request: Request, reason: Exception) -> None:
        super().__init__(f"{type(reason).__name__}: {reason}")
        self.request = request
        self.reason = reason


async def _exchange(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    data = json.dumps(request.question.body).encode()
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (request.question.path.encode(), len(data))
        + data
    )
    async with asyncio.timeout(SILENCE):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    request.status = int(head.split()[1])
    rest = b""
    if "transfer-encoding: chunked" in head:
        while True:
            async with asyncio.timeout(SILENCE):
                size = int(await reader.readuntil(b"\r\n"), 16)
                rest += (await reader.readexactly(size + 2))[:-2]
            if not size:
                break
            *lines, rest = rest.split(b"\n")
            for line in lines:
                request.take(line)
    else:
        length = int(head.partition("content-length:")[2].split()[0])
        async with asyncio.timeout(SILENCE):
            rest = await reader.readexactly(length)
    if rest.strip():
        request.take(rest)


class Load:
    """Clients that ask one question after the other until they are told to stop."""

    def __init__(self, port: int, questions: list[Question], dice: random.Random) -> None:
        self._port = port
        self._questions = questions
        self._dice = dice
        self._stopping = False
        self.endings: Counter[Ending] = Counter()
        self.faults: list[str] = []
        self.longest_pause = 0.0
        self.longest_wait = 0.0
        """The longest time until the first piece of a stream."""
        self.longest_waited = ""
        """Who waited so long, and when."""
        self._began = time.monotonic()
        self.doomed: list[tuple[float, int]] = []
        """When a frontend was killed that had a client's port, and which."""
        self.killed: list[float] = []
        """When a worker was killed."""

    async def run(self, clients: int) -> None:
        """Returns when `stop` was called and every answer has its end."""
        await asyncio.gather(*(self._ask_and_ask() for _ in range(clients)))

    def stop(self) -> None:
        """Has every client end with the answer that it reads."""
        self._stopping = True

    async def _ask_and_ask(self) -> None:
        while not self._stopping:
            question = self._dice.choice(self._questions)
            if self._dice.random() < 0.15:
                question = question.whole()
            ending, detail = await self._try(question)
            self.endings[ending] += 1
            if detail:
                self.faults.append(f"{ending.name}: {question.model} {question.path}: {detail}")

    async def _try(self, question: Question) -> tuple[Ending, str]:
        try:
            request = await ask(self._port, question)
        except Unfinished as error:
            request, reason = error.request, error.reason
            if self._is_doomed(request):
                return Ending.FRONTEND_DIED, ""
            ending = Ending.SILENT if isinstance(reason, TimeoutError) else Ending.BROKEN
            return ending, f"{error}, after {len(request.text)} characters"
        except OSError as error:  # not even a connection
            return Ending.BROKEN, str(error)
        wait = request.first - request.began if question.streamed else 0.0
        if wait > self.longest_wait:
            self.longest_wait = wait
            self.longest_waited = f"{question.model}, from second {request.began - self._began:.0f}"
        self.longest_pause = max(self.longest_pause, request.pause)
        ending, detail = request.judge()
        return (Ending.BLAMED, "") if self._is_blamed(request) else (ending, detail)

    def _is_blamed(self, request: Request) -> bool:
        killed = sum(request.began <= moment <= request.ended for moment in self.killed)
        return any(words.search(request.error) and killed >= n for words, n in BLAME.items())

    def _is_doomed(self, request: Request) -> bool:
        return any(
            port == request.port and request.began <= moment <= request.ended + 0.1
            for moment, port in self.doomed
        )


async def learn(port: int, questions: list[Question]) -> list[Question]:
    """The questions with the answers that they get while nothing happens."""
    learned: list[Question] = []
    for question in questions:
        request = await ask(port, question)
        assert request.status == 200, request.error
        assert request.final, request.error
        learned.append(question.answered(request.text, request.final))
    return learned


async def fetch(port: int, path: str) -> int:
    """The status of a GET; 0 where there is none."""
    with contextlib.suppress(OSError, EOFError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(SILENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                return int((await reader.readline()).split()[1])
    return 0
