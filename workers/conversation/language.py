"""In which language a template is written."""

from __future__ import annotations

import re

from .gotemplate import GoTemplateError
from .gotemplate import Template as GoTemplate

_JINJA_ONLY = ("{%", "{#")
_GO_VALUE = re.compile(r"\{\{(?:[^{}'\"`]*[\s(|])?(?:\.[A-Z]|\$[\s\w.])")
"""How a Go template that cannot be read still looks like one: it reaches for `.Name` or `$name`."""


def go_template(source: str) -> GoTemplate | None:
    """The template of a source in Go's language, or None where the source is in Jinja.

    What can be read as Go is Go, unless it has signs of Jinja and reaches for nothing in Go's way:
    no Jinja expression can be read as Go and begins with a dot or a dollar. What cannot be read as
    Go is Jinja, unless it looks like Go with a mistake: then `GoTemplateError` is raised.
    """
    marked = any(sign in source for sign in _JINJA_ONLY)
    try:
        template = GoTemplate.parse(source)
    except GoTemplateError:
        if marked or not _GO_VALUE.search(source):
            return None
        raise
    return template if template.names or not marked else None
