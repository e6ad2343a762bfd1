"""The model `echo` as the library has its models: a name and a pace, and nothing on disk.

    echo        as fast as the tokens go
    echo:50     each request gets 50 tokens in a second

Its digest holds the pace, so that its facts follow from the digest alone, in any process.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from ...protocol.messages.library import ModelFacts
from ...protocol.names import ModelName, parse_name
from ..echo import PACE
from .details import details_of
from .layout import Config, StoredModel

NAME: ModelName = parse_name("echo")

CONTEXT = 131_072
"""Tokens that it remembers at most."""

_PACE = re.compile(r"[1-9][0-9]{0,5}")
"""Tokens per second, as a tag."""

_DIGITS = 8
_DIGEST = hashlib.sha256(b"pronk echo").hexdigest()[:-_DIGITS]
"""What the digests of all its paces begin with."""


def echo_model(wanted: ModelName) -> StoredModel | None:
    """The model of this name, where it is one of echo's."""
    if wanted.key[:-1] != NAME.key[:-1]:
        return None
    tag = wanted.key[-1]
    if tag == NAME.tag:
        return _model(0)
    return _model(int(tag)) if _PACE.fullmatch(tag) else None


def echo_facts(digest: str) -> ModelFacts | None:
    """All that placing and loading it needs, where the digest is one of echo's."""
    if not digest.startswith(_DIGEST):
        return None
    pace = int(digest[-_DIGITS:], 16)
    model = _model(pace)
    return ModelFacts(
        name=model.name.display,
        digest=digest,
        weights="",
        size=0,
        context_length=CONTEXT,
        details=details_of(model, None),
        parameters={PACE: pace},
    )


def _model(pace: int) -> StoredModel:
    return StoredModel(
        name=ModelName(NAME.host, NAME.namespace, NAME.model, str(pace) if pace else NAME.tag),
        digest=f"{_DIGEST}{pace:0{_DIGITS}x}",
        modified_at=Path(__file__).stat().st_mtime,  # when it was installed
        size=0,
        config=Config(format="echo", family="echo", parameter_size="0", quantization="none"),
        weights=None,
    )
