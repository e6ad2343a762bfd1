"""The documentation names things that exist."""

from __future__ import annotations

import dataclasses
import inspect
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages import CONVERSATIONS, failure

ROOT = Path(__file__).resolve().parents[2]
NAMED_TEST = re.compile(r"`((?:unit|integration|deaths|cluster|registry|clients)/\w+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


def test_every_test_that_the_compatibility_page_names_exists():
    page = (ROOT / "docs" / "compatibility.md").read_text()
    named = NAMED_TEST.findall(page)
    assert len(named) > 40
    for file, test in named:
        source = (ROOT / "tests" / file).read_text()
        assert re.search(rf"def {test}\(", source), f"{file}::{test}"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_pages_lead_somewhere(page: str):
    for target in LINK.findall((ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target


def declared(cls: type[Any]) -> list[str]:
    """What the protocol's page has to say of a class: its values, or its fields with a mark."""
    if issubclass(cls, Enum):
        return [member.value for member in cls]
    missing = dataclasses.MISSING
    return [
        field.name + ("" if (field.default, field.default_factory) == (missing, missing) else "?")
        for field in dataclasses.fields(cls)
    ]


def test_the_protocol_page_lists_every_field_of_every_message():
    page = (ROOT / "docs" / "protocol.md").read_text().partition("## Fields")[2]
    rows = {
        name: re.findall(r"`([^`]+)`", fields)
        for name, fields in re.findall(r"^\| `?(\w+)`? \| (.*) \|$", page, re.MULTILINE)
    }
    classes = [
        value
        for module in (failure, *CONVERSATIONS)
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    assert len(classes) > 40
    for cls in (Code, *classes):
        assert rows.get(cls.__name__) == declared(cls), cls.__name__
