"""What is said of a model beside its weights: its texts, checked and put in the place of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ....protocol.errors import Code, PronkError
from ....protocol.messages.changes import CreateModel
from ..layout import Layer
from .parameters import merged, typed

MAX_TEXTS = 2 * 1024 * 1024
"""Bytes in UTF-8 of all texts of one request, so that they can be shown in one answer."""
MAX_LICENSES = 32
MAX_MESSAGES = 1024
_ROLES = ("system", "user", "assistant")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VERSION = re.compile(r"v?[0-9]+(\.[0-9]+){0,2}([-+][0-9A-Za-z.+-]{1,32})?")


@dataclass(frozen=True, slots=True)
class Texts:
    """What a request says; empty where it says nothing, and the base's is taken over."""

    template: str
    system: str
    licenses: Sequence[str]
    parameters: dict[str, Any]
    messages: Sequence[dict[str, str]]
    renderer: str
    parser: str
    requires: str


def texts_of(order: CreateModel) -> Texts:
    """The texts of a request. Raises `PronkError` (invalid_request) that names what is wrong.

    What is in its template is for `check_template` to look at.
    """
    licenses = [text for text in order.license or [] if text]
    messages = order.messages or []
    if len(licenses) > MAX_LICENSES:
        raise _invalid(f"license: there may be {MAX_LICENSES} at most")
    if len(messages) > MAX_MESSAGES:
        raise _invalid(f"messages: there may be {MAX_MESSAGES} at most")
    for place, message in enumerate(messages):
        if message.role not in _ROLES:
            raise _invalid(f"messages[{place}]: role must be one of {', '.join(_ROLES)}")
    size = sum(
        len(text.encode())
        for text in (
            order.template or "",
            order.system or "",
            *licenses,
            *(message.content for message in messages),
        )
    )
    if size > MAX_TEXTS:
        raise _invalid(
            f"its texts have {size} bytes together; the limit is {MAX_TEXTS // 1024**2} MiB"
        )
    for what, value in (("renderer", order.renderer), ("parser", order.parser)):
        if value and not _WORD.fullmatch(value):
            raise _invalid(f"{what}: must be a name of letters, digits, '.', '_' and '-'")
    if order.requires and not _VERSION.fullmatch(order.requires):
        raise _invalid("requires: must be a version, such as 0.14.0")
    return Texts(
        template=order.template or "",
        system=order.system or "",
        licenses=licenses,
        parameters=typed(order.parameters or {}),
        messages=[{"role": message.role, "content": message.content} for message in messages],
        renderer=order.renderer or "",
        parser=order.parser or "",
        requires=order.requires or "",
    )


def with_texts(
    layers: Sequence[Layer],
    texts: Texts,
    parameters: dict[str, Any],
    keep: Callable[[str, bytes], Layer],
) -> list[Layer]:
    """The layers of a model, with what the request says in the place of what was said before;
    licenses add up. `parameters` are those that the layers hold.

    `keep` makes a layer of a kind from its content.
    """
    result = list(layers)

    def add(kind: str, content: bytes, *, replace: bool = True) -> None:
        if replace:
            result[:] = [layer for layer in result if layer.kind != kind]
        layer = keep(kind, content)
        if all((layer.kind, layer.digest) != (other.kind, other.digest) for other in result):
            result.append(layer)

    if texts.template:
        add("template", texts.template.encode())
    if texts.system:
        add("system", texts.system.encode())
    for text in texts.licenses:
        add("license", text.encode(), replace=False)
    if texts.parameters:
        all_of_them = merged(parameters, texts.parameters)
        result[:] = [layer for layer in result if layer.kind != "params"]
        if all_of_them:
            add("params", orjson.dumps(all_of_them))
    if texts.messages:
        add("messages", orjson.dumps(texts.messages))
    return result


def _invalid(problem: str) -> PronkError:
    return PronkError(Code.INVALID_REQUEST, problem)
