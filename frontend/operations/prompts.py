"""What can be said of a prompt before anything has read it: its parts, its size, its bounds."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, cast

import orjson

from ...protocol.errors import Code, PronkError
from ...protocol.messages.fields import MAX_IMAGES
from ...protocol.messages.generation import ChatMessage
from .request import GenerationRequest

BYTES_PER_TOKEN = 4
"""Of text, about: good enough to compare requests before anything has read them."""

TOKENS_PER_IMAGE = 512
"""The same of an image, which models cut into a number of parts of their own choice."""

USUAL_ANSWER = 256
"""Tokens that an answer without a bound is taken to have, for the same purpose."""

MAX_CONTAINERS = 32_768
"""Lists and objects in the tools and calls of a request: what they cost does not depend on their
bytes."""


def check_bounds(request: GenerationRequest) -> None:
    """Raises INVALID_REQUEST where a request holds more than can be borne in any dialect."""
    images = len(request.images) + sum(len(message.images) for message in request.messages)
    if images > MAX_IMAGES:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"images: at most {MAX_IMAGES} are taken in all messages together; got {images}",
        )
    calls = (call.arguments for message in request.messages for call in message.tool_calls)
    count = sum(map(_containers, request.tools)) + sum(map(_containers, calls))
    if count > MAX_CONTAINERS:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"tools: with the calls in the messages they hold {count} lists and objects, the limit "
            f"is {MAX_CONTAINERS}; send fewer tools or simpler schemas",
        )


def prompt_parts(request: GenerationRequest) -> list[tuple[str, bytes]]:
    """The prompt in about the order in which a model reads it: each part a role and its bytes.

    Tools and levels of thinking stand in most models' system message. What `think` says otherwise
    comes at the end, and parts no prompts from each other.
    """
    parts = [("template", request.template.encode())] if request.template else []
    if request.tools:
        parts.append(("tools", orjson.dumps(request.tools)))
    if isinstance(request.think, str):
        parts.append(("think", request.think.encode()))
    if request.system:
        parts.append(("system", request.system.encode()))
    if request.context:
        parts.append(("context", _token_bytes(request.context)))
    parts += map(_part, request.messages)
    if request.images:
        parts.append(("images", _digests(request.images)))
    if request.prompt:
        parts.append(("raw" if request.raw else "user", request.prompt.encode()))
    if request.suffix:
        parts.append(("suffix", request.suffix.encode()))
    return parts


def estimate_cost(request: GenerationRequest, parts: list[tuple[str, bytes]]) -> int:
    """Tokens that a request takes to read and to answer, about."""
    read = sum(len(text) // BYTES_PER_TOKEN + 1 for _, text in parts)
    images = len(request.images) + sum(len(message.images) for message in request.messages)
    limit = request.options.num_predict
    written = limit if limit is not None and limit > 0 else USUAL_ANSWER
    return read + TOKENS_PER_IMAGE * images + written


def _part(message: ChatMessage) -> tuple[str, bytes]:
    if not (
        message.thinking
        or message.tool_calls
        or message.tool_name
        or message.tool_call_id
        or message.images
    ):
        return message.role, message.content.encode()
    fields = [
        message.content,
        message.thinking,
        [[call.name, call.arguments, call.id] for call in message.tool_calls],
        message.tool_name,
        message.tool_call_id,
    ]
    # No role has a sign in it: this is no plain message's part.
    return f"{message.role}+", orjson.dumps(fields) + _digests(message.images)


def _digests(images: tuple[bytes, ...] | list[bytes]) -> bytes:
    return b"".join(blake2b(image, digest_size=16).digest() for image in images)


def _token_bytes(tokens: tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def _containers(value: Any) -> int:
    """Lists and maps in a value of JSON, itself included."""
    count, level = 0, [value]
    while level:
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                count += 1
                below += cast(dict[str, Any], each).values()
            elif isinstance(each, list):
                count += 1
                below += cast(list[Any], each)
        level = below
    return count
