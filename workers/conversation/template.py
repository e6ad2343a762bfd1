"""A model's own chat template: Jinja source from its file, so from anybody.

minijinja renders it: no Python object is within its reach, and fuel bounds its steps. Fuel does not
bound memory; what a hostile template may take before its output is measured is bounded only by the
worker's life.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from minijinja import Environment, TemplateError

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import ChatMessage

_log = logging.getLogger(__name__)

_FUEL = 200_000
_FUEL_PER_MESSAGE = 5_000
_OUTPUT = 1024 * 1024
"""Characters that a template may write beside eight times what it was given."""


class _Complaint(Exception):
    """What a template says through `raise_exception`."""


def _raise_exception(message: object) -> None:
    raise _Complaint(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON as Hugging Face's templates expect it: not escaped for HTML, unlike Jinja's own."""
    known = {name: options[name] for name in ("separators", "sort_keys") if name in options}
    return json.dumps(value, ensure_ascii=bool(options.get("ensure_ascii")), indent=indent, **known)


def _is_iterable(value: object) -> bool:
    """As in Jinja. minijinja takes none for an empty list, then refuses to tell its length."""
    return hasattr(value, "__iter__")


class ChatTemplate:
    """Renders conversations the way Hugging Face's `apply_chat_template` does."""

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        """`bos` and `eos` are the texts of the model's beginning and end tokens."""
        self._source = source
        self._environment = Environment(
            debug=False,  # its messages would quote the conversation
            trim_blocks=True,
            lstrip_blocks=True,
            pycompat=True,
        )
        self._environment.add_global("raise_exception", _raise_exception)
        self._environment.add_global("strftime_now", _strftime_now)
        self._environment.add_filter("tojson", _tojson)
        self._environment.add_test("iterable", _is_iterable)
        self._globals: dict[str, Any] = {
            "bos_token": bos,
            "eos_token": eos,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The prompt text of `messages`, up to where the assistant begins to speak.

        Raises `PronkError`: INVALID_REQUEST with the template's own words where it refuses the
        conversation, INTERNAL where the template itself fails.
        """
        self._environment.fuel = _FUEL + _FUEL_PER_MESSAGE * len(messages)
        conversation = [{"role": m.role, "content": m.content} for m in messages]
        try:
            text = self._environment.render_str(
                self._source, "chat template", messages=conversation, **self._globals
            )
        except _Complaint as complaint:
            raise PronkError(
                Code.INVALID_REQUEST, f"the model's chat template refuses this: {complaint}"
            ) from None
        except TemplateError as error:
            raise _broken(error.message) from None
        except Exception as error:  # raised in a filter or function that the template called
            raise _broken(f"{type(error).__name__}: {error}") from None
        if len(text) > _OUTPUT + 8 * sum(len(message.content) for message in messages):
            raise _broken("it writes far more than it was given")
        return text


def _broken(reason: str) -> PronkError:
    _log.warning("the chat template failed: %s", reason)
    return PronkError(
        Code.INTERNAL,
        f"the model's chat template failed: {reason[:300]}; "
        "/api/generate with raw does without the template",
    )
