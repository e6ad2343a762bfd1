"""JSON answers and JSON errors, the same for every path that a dialect does not answer itself."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from ..protocol.errors import PronkError

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

INTERNAL_ERROR = "internal error; the server's log has the details"


def json_response(value: Any, status: int = 200, **headers: str) -> web.Response:
    """`value` as JSON."""
    return web.Response(
        body=orjson.dumps(value),
        status=status,
        headers={"Content-Type": "application/json; charset=utf-8", **headers},
    )


def error_body(message: str) -> bytes:
    """The JSON object that tells of an error, on one line without its end."""
    # A piece of a request may be quoted, and a request may hold what is not Unicode.
    return orjson.dumps({"error": message.encode("utf-8", "replace").decode()})


def error_response(message: str, status: int, **headers: str) -> web.Response:
    """An error as every path answers it."""
    return web.Response(
        body=error_body(message),
        status=status,
        headers={"Content-Type": "application/json; charset=utf-8", **headers},
    )


def pronk_error_response(error: PronkError) -> web.Response:
    """A `PronkError` with its status, and Retry-After where another try makes sense."""
    response = error_response(error.message, error.code.http_status)
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers every failure with `{"error": …}` and the right status, and tells no secret."""
    try:
        return await handler(request)
    except Exception as error:
        response = _response_to(error, request)
    if request.content.exception():
        # Nobody can tell where the next request begins behind a body that is broken.
        response.force_close()
    return response


def _response_to(error: Exception, request: web.Request) -> web.Response:
    path = request.rel_url.raw_path[:100]
    match error:
        case PronkError():
            return pronk_error_response(error)
        case web.HTTPNotFound():
            return error_response(f"there is no {path} here; see the API reference", 404)
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            message = f"method {error.method[:20]} is not allowed here; use {allowed}"
            return error_response(message, 405, Allow=allowed)
        case web.HTTPException():
            return error_response(error.text or error.reason, error.status)
        case _:
            _log.error("%s %s failed", request.method, path, exc_info=error)
            return error_response(INTERNAL_ERROR, 500)
