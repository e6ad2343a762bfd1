"""`WWW-Authenticate` as registries write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.store.registry.challenges import Challenge, parse_challenges

REALM = "https://auth.example/token"


@pytest.mark.parametrize(
    ("headers", "challenges"),
    [
        ([], []),
        ([""], []),
        (["Basic"], [Challenge("basic")]),
        (['Basic realm="x"'], [Challenge("basic", {"realm": "x"})]),
        (
            [f'Bearer realm="{REALM}",service="r.example",scope="repository:a/b:pull,push"'],
            [
                Challenge(
                    "bearer",
                    {"realm": REALM, "service": "r.example", "scope": "repository:a/b:pull,push"},
                )
            ],
        ),
        (
            ['bearer  Realm = "a" ,  service=plain , error="insufficient_scope"'],
            [
                Challenge(
                    "bearer", {"realm": "a", "service": "plain", "error": "insufficient_scope"}
                )
            ],
        ),
        (
            ['Basic realm="a", Bearer realm="b"'],
            [Challenge("basic", {"realm": "a"}), Challenge("bearer", {"realm": "b"})],
        ),
        (
            ["Negotiate", 'Bearer realm="b"'],
            [Challenge("negotiate"), Challenge("bearer", {"realm": "b"})],
        ),
        (['Bearer realm="a\\"b, c=d"'], [Challenge("bearer", {"realm": 'a"b, c=d'})]),
        (['Bearer realm="first",realm="second"'], [Challenge("bearer", {"realm": "first"})]),
        (['realm="nobody"'], []),
        (['Bearer realm="never closed'], [Challenge("bearer")]),
    ],
)
def test_challenges(headers: list[str], challenges: list[Challenge]) -> None:
    assert parse_challenges(headers) == challenges


def test_a_long_one_is_read_quickly_and_in_part() -> None:
    for long in ('a="', "a ", "a", '="', "\\", ", ", 'a="\\"'):
        found = parse_challenges(["Bearer " + long * 1_000_000])
        assert not found or found[0].scheme == "bearer"


@given(st.lists(st.text(max_size=200), max_size=3))
def test_anything_is_read(headers: list[str]) -> None:
    parse_challenges(headers)
