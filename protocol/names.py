"""Model names as Ollama writes, completes and compares them.

    [host/][namespace/]model[:tag]

with the defaults `registry.ollama.ai`, `library` and `latest`; `hf.co/org/repo:quant` has the same
form. The rules follow `types/model/name.go` of Ollama. A name becomes four path components below
the library's `manifests`: since each begins with a letter, digit or underscore and holds no
separator, no name leads out of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import Code, PronkError

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

MAX_NAME = 512
"""Longest name in characters: what a message's `Label` holds. Ollama's own bound is 593."""

_SHOWN = 60
_SCHEME = re.compile(r"https?://")
_PARTS = {
    # its form, its greatest length, and the characters that are allowed besides letters and digits
    "host": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*"), 350, "'_', '-', '.' and ':'"),
    "namespace": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*"), 80, "'_' and '-'"),
    "model": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), 80, "'_', '-' and '.'"),
    "tag": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), 80, "'_', '-' and '.'"),
}


@dataclass(frozen=True, slots=True, order=True)
class ModelName:
    """A complete name. Case is kept for display and does not count when names are compared."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """The path components of the name's manifest, below `manifests`."""
        return self.host, self.namespace, self.model, self.tag

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for names that mean the same model."""
        return tuple(part.lower() for part in self.parts)

    @property
    def canonical(self) -> str:
        """The one text for all names that mean the same model."""
        return self.display.lower()

    @property
    def display(self) -> str:
        """The shortest name that people know the model by: always with its tag, with host and
        namespace only where they are not the defaults.
        """
        shown = f"{self.model}:{self.tag}"
        if self.host.lower() != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{shown}"
        if self.namespace.lower() != DEFAULT_NAMESPACE:
            return f"{self.namespace}/{shown}"
        return shown


def parse_name(text: str) -> ModelName:
    """The complete name that `text` stands for.

    Raises `PronkError` (invalid_request) that says which part is wrong and what is allowed.
    """
    if not text:
        raise _invalid(text, "it is empty")
    if len(text) > MAX_NAME:
        raise _invalid(text, f"it is longer than {MAX_NAME} characters")
    scheme = _SCHEME.match(text)
    rest = text[scheme.end() :] if scheme else text
    # A colon before the last slash belongs to the host's port.
    tag = None
    if rest.rfind(":") > rest.rfind("/"):
        rest, _, tag = rest.rpartition(":")
    pieces = rest.split("/")
    if len(pieces) > 3:
        raise _invalid(text, "it has more parts than host/namespace/model:tag")
    if scheme and len(pieces) < 3:
        raise _invalid(text, "an address has the form https://host/namespace/model:tag")
    host, namespace, model = [None] * (3 - len(pieces)) + pieces
    name = ModelName(
        DEFAULT_HOST if host is None else host,
        DEFAULT_NAMESPACE if namespace is None else namespace,
        model or "",
        DEFAULT_TAG if tag is None else tag,
    )
    for part, value in zip(_PARTS, name.parts, strict=True):
        if problem := _problem(part, value):
            raise _invalid(text, problem)
    if len(name.display) > MAX_NAME:
        raise _invalid(text, f"it is longer than {MAX_NAME} characters")
    return name


def name_of_parts(parts: tuple[str, str, str, str]) -> ModelName | None:
    """The name whose manifest has this path, or None where the path is no name's."""
    name = ModelName(*parts)
    if any(_problem(part, value) for part, value in zip(_PARTS, parts, strict=True)):
        return None
    return name if len(name.display) <= MAX_NAME else None


def _problem(part: str, value: str) -> str | None:
    form, longest, allowed = _PARTS[part]
    if not value:
        return f"its {part} is empty"
    if len(value) > longest:
        return f"its {part} is longer than {longest} characters"
    if not form.fullmatch(value):
        return f"its {part} may hold letters, digits and, behind the first one, {allowed}"
    return None


def _invalid(text: str, problem: str) -> PronkError:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return PronkError(Code.INVALID_REQUEST, f"{shown!a} is not a model name: {problem}")
