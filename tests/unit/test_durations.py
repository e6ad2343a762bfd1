"""Durations are read in every form that Ollama's clients write."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.durations import parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (0, 0),
        (300, 300),
        (-1, -1),
        (2.5, 2.5),
        ("0", 0),
        ("-1", -1),
        ("5", 5),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("-5m", -300),
        ("+2s", 2),
        (" 10s ", 10),
        ("100us", 1e-4),
    ],
)
def test_a_duration_is_read(written: object, seconds: float):
    assert math.isclose(parse_duration(written), seconds)


@pytest.mark.parametrize(
    "written",
    ["", "m", "5x", "five minutes", "5m5", "--1", "1h-30m", "nan", "inf", None, True, [], {}],
)
def test_what_is_no_duration_is_refused(written: object):
    with pytest.raises(ValueError, match="is not a"):
        parse_duration(written)


@pytest.mark.parametrize("written", [math.inf, math.nan, "9" * 400, 10**400])
def test_a_duration_is_finite(written: object):
    with pytest.raises(ValueError, match="finite"):
        parse_duration(written)


def test_a_text_that_would_take_seconds_to_add_up_is_refused():
    with pytest.raises(ValueError, match="too long"):
        parse_duration("1m" * 5_000_000)


@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text: str):
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_duration(text))
