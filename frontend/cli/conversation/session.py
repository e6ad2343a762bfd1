"""What a conversation knows, and how it asks the server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ....protocol.errors import Code, PronkError
from .. import showing
from ..api import Api
from ..parameters import Value
from ..progress import follow, progress
from ..terminal import is_capable, tell
from ..transfer import pull
from .output import Output, summary
from .pictures import taken_out

Message = dict[str, Any]
_Parts = Generator[tuple[str | None, str | None, Any], None, None]
"""Thought, text, and the object that both come from."""


@dataclass(slots=True)
class Session:
    """One person's talk with one model."""

    api: Api
    model: str
    system: str | None = None
    format: str | dict[str, Any] | None = None
    options: dict[str, Value] = field(default_factory=dict[str, Value])
    keep_alive: str | None = None
    think: bool | str | None = None
    hides_thinking: bool = False
    verbose: bool = False
    wraps: bool = True
    insecure: bool = False
    messages: list[Message] = field(default_factory=list[Message])
    """What was said so far; system messages are not among it."""
    preset: list[Message] = field(default_factory=list[Message])
    """The model's own messages, which the server puts before these."""
    sees: bool = False
    """Whether the model takes pictures."""

    def fetch(self) -> dict[str, Any]:
        """What the server tells of the model, which is pulled first where it is not there."""
        try:
            shown = showing.fetch(self.api, self.model)
        except PronkError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            with progress() as moving:
                pull(self.api, self.model, self.insecure, moving)
            shown = showing.fetch(self.api, self.model)
        self.preset = _messages(shown.get("messages"))
        self.sees = "vision" in (shown.get("capabilities") or [])
        return shown

    def look(self, prompt: str) -> tuple[str, list[bytes]]:
        """A prompt without the names of pictures, and the pictures, where the model sees them."""
        if not self.sees:
            return prompt, []
        text, pictures = taken_out(prompt)
        for name in pictures:
            tell(f"Added image '{name}'")
        return text, list(pictures.values())

    def load(self) -> None:
        """Has the model loaded, with what was set for it."""
        with waiting():
            self.api.post("/api/generate", {"model": self.model, "stream": False} | self._stay())

    def ask(self, prompt: str, images: Sequence[bytes] = ()) -> None:
        """Prints the answer to one prompt that belongs to no conversation."""
        parts = self.api.streamed(
            lambda: self.api.client.generate(
                model=self.model,
                prompt=prompt,
                images=images,
                system=self.system or "",
                stream=True,
                **self._common(),
            )
        )
        self._print((part.thinking, part.response, part) for part in parts)

    def say(self, text: str) -> None:
        """Prints the answer to what a person says, and keeps both in mind.

        Ctrl-C ends the answer, which then counts as far as it came. After a failure it is as if
        nothing had been said.
        """
        text, images = self.look(text)
        asked: Message = {"role": "user", "content": text}
        said = [*self.messages, asked | ({"images": images} if images else {})]
        system = [{"role": "system", "content": self.system}] if self.system else []
        answer: list[str] = []
        parts = self.api.streamed(
            lambda: self.api.client.chat(
                model=self.model, messages=[*system, *said], stream=True, **self._common()
            )
        )
        try:
            self._print(
                ((part.message.thinking, part.message.content, part) for part in parts), answer
            )
        except KeyboardInterrupt:
            if not answer:
                return
        self.messages = [*said, {"role": "assistant", "content": "".join(answer)}]

    def embed(self, text: str, dimensions: int | None, truncate: bool | None) -> list[float]:
        """The vector of a text."""
        with self.api.errors():
            found = self.api.client.embed(
                model=self.model,
                input=text,
                truncate=truncate,
                dimensions=dimensions,
                keep_alive=self.keep_alive,
            )
            return list(found.embeddings[0])

    def save(self, name: str) -> None:
        """Makes a model of what was set and said. Pictures are not kept in models."""
        body: dict[str, Any] = {"model": name, "from": self.model, "stream": True}
        body |= {"parameters": self.options} if self.options else {}
        body |= {"system": self.system} if self.system else {}
        if messages := [*self.preset, *self.messages]:
            body["messages"] = _messages(messages)
        with progress() as shown:
            done = follow(self.api.lines("/api/create", body), shown)
        if not done:
            raise PronkError(Code.UNAVAILABLE, "the server did not come to an end; try again")

    def _common(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "options": self.options or None,
            "think": self.think,
            "keep_alive": self.keep_alive,
        }

    def _stay(self) -> dict[str, Any]:
        body: dict[str, Any] = {"options": self.options} if self.options else {}
        return body | ({} if self.keep_alive is None else {"keep_alive": self.keep_alive})

    def _print(self, parts: _Parts, answer: list[str] | None = None) -> None:
        output = Output(self.wraps, self.hides_thinking)
        last = None
        try:
            with closing(parts), waiting() as stop_waiting:
                for thinking, text, part in parts:
                    if thinking or text:
                        stop_waiting()
                    if text and answer is not None:
                        answer.append(text)
                    output.thought(thinking or "")
                    output.text(text or "")
                    last = part
        finally:
            output.close()
        if last is not None and not last.done:
            raise PronkError(Code.UNAVAILABLE, "the answer was cut off; ask again")
        if self.verbose:
            tell(summary(last))


@contextmanager
def waiting() -> Iterator[Callable[[], None]]:
    """A spinner on the terminal, until the block ends or the function that it gets is called."""
    if not (is_capable(sys.stderr) and is_capable(sys.stdout)):
        yield lambda: None
        return
    from rich.console import Console

    status = Console(file=sys.stderr).status("")
    status.start()
    try:
        yield status.stop
    finally:
        status.stop()


def _messages(found: object) -> list[Message]:
    messages = found if isinstance(found, list) else []
    return [
        {"role": str(each.get("role", "")), "content": str(each.get("content", ""))}
        for each in messages
        if isinstance(each, dict)
    ]
