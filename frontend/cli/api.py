"""The server's HTTP API as commands use it: the official client, and errors for a person."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from ...protocol.errors import Code, PronkError
from .address import is_local, server_url
from .terminal import printable

if TYPE_CHECKING:
    import httpx
    import ollama

CONNECT_SECONDS = 10.0
"""How long a server may take to accept a connection. Its answers may take as long as they do."""

_LONGEST_REASON = 500

_Part = TypeVar("_Part")


class Api:
    """One server. Every method raises `PronkError`: NOT_FOUND for what is not there, UNAVAILABLE
    where no server is.
    """

    def __init__(self, url: str) -> None:
        import httpx

        self.url = url
        self._options: dict[str, Any] = {
            "timeout": httpx.Timeout(None, connect=CONNECT_SECONDS),
            "trust_env": not is_local(url),
            "follow_redirects": False,
        }
        key = os.environ.get("OLLAMA_API_KEY")  # the official client sends it, too
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with self.errors():
            self._http = httpx.Client(base_url=url, headers=headers, **self._options)

    @classmethod
    def of(cls, host: str | None) -> Api:
        """The server of `--host`, or of the settings."""
        return cls(server_url(host))

    @cached_property
    def client(self) -> ollama.Client:
        """The official client. What is asked through it stands in `errors`, or goes through
        `streamed`.
        """
        import ollama

        return ollama.Client(host=self.url, **self._options)

    def get(self, path: str) -> dict[str, Any]:
        """The object that a path has."""
        return self._object("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object that answers `body`."""
        return self._object("POST", path, json=body)

    def has(self, path: str) -> bool:
        """Whether there is something at a path."""
        with self.errors():
            answer = self._http.head(path)
            if answer.status_code == 404:
                return False
            self._check(answer)
        return True

    def send(self, path: str, content: Iterable[bytes], size: int) -> None:
        """Posts a file of so many bytes, as it is read."""
        headers = {"content-length": str(size), "content-type": "application/octet-stream"}
        with self.errors():
            self._check(self._http.post(path, content=content, headers=headers))

    def lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The objects that are streamed in answer to `body`. One with an `error` is raised."""
        import json

        with self.errors(), self._http.stream("POST", path, json=body) as answer:
            if answer.is_error:
                answer.read()
            self._check(answer)
            for line in answer.iter_lines():
                if not line.strip():
                    continue
                part = json.loads(line)
                if not isinstance(part, dict):
                    raise ValueError("a line that is no object")
                if error := part.get("error"):
                    raise _refused(str(error), -1)
                yield part

    def streamed(self, ask: Callable[[], Iterable[_Part]]) -> Iterator[_Part]:
        """The parts of an answer that the official client streams once it is asked."""
        with self.errors():
            yield from ask()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns what the client raises into `PronkError`."""
        import sys

        import httpx

        try:
            yield
        except BrokenPipeError:  # of our own output: the client's are wrapped
            raise
        except (httpx.ConnectError, httpx.ConnectTimeout, ConnectionError):
            raise PronkError(
                Code.UNAVAILABLE,
                f"no server at {self.url}; start one with `pronk serve`, or name another with "
                "--host or PRONK_HOST",
            ) from None
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            raise PronkError(
                Code.UNAVAILABLE, f"the server at {self.url} ended the connection; try again"
            ) from None
        except httpx.HTTPError as error:
            raise PronkError(Code.UNAVAILABLE, f"{self.url}: {_line(str(error))}") from None
        except UnicodeEncodeError:
            raise PronkError(
                Code.INVALID_REQUEST, "an argument is not valid text in this terminal's encoding"
            ) from None
        except (ValueError, TypeError, AttributeError, KeyError, httpx.InvalidURL) as error:
            raise PronkError(
                Code.INTERNAL,
                f"what answers at {self.url} does not speak Ollama's API: {_line(str(error))}",
            ) from None
        except Exception as error:
            # Looked up, not imported: commands that do not need the official client start sooner.
            official = sys.modules.get("ollama")
            if official is None or not isinstance(error, official.ResponseError):
                raise
            raise _refused(
                getattr(error, "error", error), getattr(error, "status_code", -1)
            ) from None

    def _object(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        with self.errors():
            answer = self._http.request(method, path, **options)
            self._check(answer)
            found = answer.json()
            if not isinstance(found, dict):
                raise ValueError("an answer that is no object")
            return found

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        try:
            reason = answer.json()["error"]
        except (ValueError, TypeError, KeyError):
            reason = f"status {answer.status_code} {answer.text}"
        raise _refused(reason, answer.status_code)


def _refused(reason: object, status: int) -> PronkError:
    if 300 <= status < 400:
        reason = f"the server redirects (status {status}); name the address that it redirects to"
    code = Code.NOT_FOUND if status == 404 else Code.INTERNAL
    return PronkError(code, _line(str(reason)) or f"the server answered with status {status}")


def _line(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= _LONGEST_REASON else line[:_LONGEST_REASON] + "…"
