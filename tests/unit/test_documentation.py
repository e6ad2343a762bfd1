"""The documentation names things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED_TEST = re.compile(r"`((?:unit|integration)/\w+\.py)::(\w+)`")
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
