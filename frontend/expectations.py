"""Bodies that clients hold back until they are told to send them (`Expect: 100-continue`, as curl
does with large ones).

They are told when the body is read, and not before: what is refused, or there already, is never
sent.
"""

from __future__ import annotations

from aiohttp import HttpVersion11, web

_CONTINUE = "100-continue"
_ASKED_FOR = web.RequestKey("asked_for", bool)


async def leave_waiting(request: web.Request) -> None:
    """What is done when the head of a request has come: nothing. For aiohttp's `expect_handler`."""


async def ask_for_body(request: web.Request) -> None:
    """Has the client send its body, where it holds it back.

    Raises HTTP error 417 for any other expectation.
    """
    if not (expected := _expectation(request)) or _ASKED_FOR in request:
        return
    if expected != _CONTINUE:
        raise web.HTTPExpectationFailed(text=f"no other expectation is met here than {_CONTINUE}")
    request[_ASKED_FOR] = True
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer has not begun


async def close_unasked(request: web.Request, response: web.StreamResponse) -> None:
    """Ends the connection after an answer to a body that was never asked for: its client may send
    it or not, and nobody could tell it from the next request. Runs before each response begins.
    """
    if _expectation(request) and _ASKED_FOR not in request:
        response.headers["Connection"] = "close"
        response.force_close()


def _expectation(request: web.Request) -> str:
    """In small letters. HTTP/1.0 has none."""
    return request.headers.get("Expect", "").lower() if request.version >= HttpVersion11 else ""
