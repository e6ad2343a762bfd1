"""The judge of the chaos suite can tell right from wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from typing import Any

import pytest

from chaos.clients import Ending, Load, Request
from chaos.questions import Question, recited

QUESTION = Question(
    "/api/generate", {"model": "m", "prompt": "x"}, text="abc", eval_count=3, prompt_eval_count=1
)
END = {"response": "", "done": True, "eval_count": 3, "prompt_eval_count": 1}


def judged(*pieces: str, status: int = 200, **end: Any) -> tuple[Ending, str]:
    request = Request(QUESTION, status=status)
    for piece in pieces:
        request.take(json.dumps({"response": piece, "done": False}).encode())
    if end:
        request.take(json.dumps({**END, **end} if "error" not in end else end).encode())
    return request.judge()


def test_the_right_text_is_right():
    assert judged("ab", "c", done=True) == (Ending.RIGHT, "")


@pytest.mark.parametrize("pieces", [("ab", "bc"), ("a", "c"), ("ab",), ("abc", "c"), ("abd",)])
def test_a_token_doubled_lost_or_changed_is_wrong(pieces: tuple[str, ...]):
    assert judged(*pieces, done=True)[0] is Ending.WRONG


@pytest.mark.parametrize("count", [{"eval_count": 4}, {"prompt_eval_count": 3}])
def test_a_token_counted_twice_is_wrong(count: dict[str, int]):
    ending, detail = judged("abc", **count)
    assert ending is Ending.WRONG
    assert next(iter(count)) in detail


def test_an_error_and_a_missing_end_are_told_apart():
    assert judged("ab", error="the worker died")[0] is Ending.ERROR
    assert judged("abc")[0] is Ending.BROKEN


def test_the_recited_text_is_known_beforehand():
    body = {"model": "reciter", "prompt": "9", "options": {"num_predict": 40}}
    text = recited(Question("/api/generate", body))
    assert text[:3] == "ABC"
    assert len(text) == 40
    assert text[26:29] == "abc"


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LINE = b'{"response":"abc","done":false}\n'
LAST = json.dumps(END).encode() + b"\n"


def chunks(*lines: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines)


def served(answer: bytes, *, doomed: bool = False, killed: int = 0) -> tuple[Ending, str]:
    """What a client makes of these bytes, behind which the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        load = Load(listener.getsockname()[1], [QUESTION], random.Random(1))

        def serve() -> None:
            connection, (_, client) = listener.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(65536)
                load.killed += [time.monotonic()] * killed
                if doomed:
                    load.doomed.append((time.monotonic(), client))
                connection.sendall(answer)
                # What of the request is not read yet would have the answer cut off by the end.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        ending = asyncio.run(load._try(QUESTION))
        thread.join()
        return ending


def test_a_whole_answer_is_read_to_its_end():
    assert served(chunks(LINE, LAST, b"")) == (Ending.RIGHT, "")
    assert served(chunks(LINE + LAST[:9], LAST[9:], b"")) == (Ending.RIGHT, "")


@pytest.mark.parametrize(
    "answer", [b"", HEAD, chunks(LINE), chunks(LINE, LAST), chunks(LINE, LAST, b"")[:-2]]
)
def test_an_answer_without_its_last_chunk_is_broken_unless_its_frontend_was_killed(answer: bytes):
    assert served(answer)[0] is Ending.BROKEN
    assert served(answer, doomed=True) == (Ending.FRONTEND_DIED, "")


def test_only_a_request_whose_workers_were_killed_may_be_given_up():
    error = {"error": "the process died 2 times in a row at the same place"}
    answer = chunks(LINE, json.dumps(error).encode() + b"\n", b"")
    assert served(answer, killed=1)[0] is Ending.ERROR
    assert served(answer, killed=2) == (Ending.BLAMED, "")
