"""What comes and is no HTTP: how it is answered, and how it is logged."""

from __future__ import annotations

import logging
from http import HTTPStatus

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from ..protocol.logs import RateLimitedLog
from .answers import error_response
from .operations.status import VERSION

_log = logging.getLogger(__name__)

SERVER = f"Pronk/{VERSION}"
"""What we call ourselves in each answer."""


class Runner(web.AppRunner):
    """aiohttp's, with connections that tell of mistakes as all our answers do."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # aiohttp asks nobody of which class its connections are to be.
        server.__class__ = _Server
        return server


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    """Tells in JSON what cannot be read, and says nothing of the software behind it."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The last answer on a connection."""
        response = super().handle_error(request, status, exc, message)
        if isinstance(exc, ContentEncodingError):
            status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            reason = "the body's Content-Encoding is not supported; send it plain, or with gzip"
        elif isinstance(exc, HttpProcessingError):
            # Behind a colon stands what was sent, as Python writes it.
            words = (message or "").partition(":")[0].strip()
            reason = f"the request is not valid HTTP: {words or 'it cannot be read'}"
        else:
            return response
        response = error_response(reason, status, Server=SERVER)
        response.force_close()
        return response


class _Malformed(logging.Filter):
    """Counts what is no HTTP instead of writing a traceback for each, which anyone can cause."""

    def __init__(self) -> None:
        super().__init__()
        self._counted = RateLimitedLog(_log)

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
            return True
        self._counted.warning("malformed HTTP", f"{type(error).__name__}")
        return False


def quieten() -> None:
    """Has this process log a line now and then about all of it."""
    logging.getLogger("aiohttp.server").addFilter(_Malformed())
