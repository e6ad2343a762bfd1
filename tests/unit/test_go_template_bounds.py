"""Go templates of strangers: whatever they do, it ends soon, takes little, and reaches nothing."""

from __future__ import annotations

import random
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.workers.conversation.gotemplate import GoTemplateError, Limits, Template
from pronk.workers.conversation.gotemplate.parser import MAX_SOURCE
from support.go_templates import load

LIMITS = Limits(steps=200_000, output=1_000_000, built=8_000_000)
DATA = {"Secret": "hidden words", "L": list(range(100)), "M": {"a": {"b": 1.5}}, "D": "x" * 50_000}


def render(source: str, data: Any = None, limits: Limits = LIMITS) -> str:
    return Template.parse(source).render(DATA if data is None else data, limits)


def refused(source: str) -> str:
    with pytest.raises(GoTemplateError) as caught:
        render(source)
    assert "hidden" not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value.reason


DOUBLING = '{{ $x := "xxxxxxxx" }}{{ range 60 }}{{ $x = %s }}{{ end }}{{ len $x }}'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ range 1000000000 }}{{ end }}", "too many steps"),
        ("{{ range $.L }}{{ range $.L }}{{ range $.L }}x{{ end }}{{ end }}{{ end }}", "too many"),
        ("{{ range 100000 }}{{ and" + " 1" * 1000 + " }}{{ end }}", "too many steps"),
        ("{{ range 100000 }}{{ $" + ".a" * 1000 + " }}{{ end }}", "too many steps|nil"),
        ("{{ range 100000 }}{{ eq $.D $.D }}{{ end }}", "too many steps"),
        ("{{ range 100000 }}{{ index `" + "é" * 30_000 + "` 9 }}{{ end }}", "too many steps"),
        ("{{ range 50 }}{{ $.D }}{{ end }}", "writes far more"),
        ('{{ define "r" }}{{ template "r" . }}{{ end }}{{ template "r" . }}', "nests more than"),
        ('{{ define "r" }}{{ if . }}{{ template "r" . }}{{ end }}{{ end }}{{ template "r" 1 }}',
         "nests more than"),
        ('{{ define "a" }}{{ range 9 }}{{ template "b" }}{{ end }}{{ end }}'
         '{{ define "b" }}{{ range 9 }}{{ template "a" }}{{ end }}{{ end }}{{ template "a" }}',
         "nests more than|too many steps"),
        ("{{ if 1 }}" * 100 + "{{ end }}" * 100, "nested more than"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested more than"),
        ("".join(f"{{{{ $a{i} := 1 }}}}" for i in range(999)), "more than 200 variables"),
        ("x" * (MAX_SOURCE + 1), "more than 65536 characters"),
        ('{{ printf "%1000000000d" 1 }}', "too large"),
        ('{{ printf "%.1000000000f" 1.5 }}', "too large"),
        ('{{ printf "%.999999f" 1.5 }}', "precision"),
        ('{{ range 90 }}{{ printf "%999999d" 1 | len }}{{ end }}', "too much memory"),
        ('{{ range 90 }}{{ printf "%*d" 999999 1 | len }}{{ end }}', "too much memory"),
        ('{{ printf "' + "%999999v" * 100 + '" 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 | len }}',
         "too much memory"),
        (DOUBLING % "print $x $x", "too much memory"),
        (DOUBLING % 'printf "%s%s" $x $x', "too much memory"),
        (DOUBLING % "html $x $x", "too much memory"),
        (DOUBLING % "js $x $x", "too much memory"),
        (DOUBLING % "urlquery $x $x", "too much memory"),
        (DOUBLING % "json (print $x $x)", "too much memory"),
        (DOUBLING % "println $x $x", "too much memory"),
        (DOUBLING % 'print (slice $x 0) (slice $x 0)', "too much memory"),
        ("{{ range 1000 }}{{ json $ | len }}{{ end }}", "too much memory|too many"),
        ("{{ range 1000 }}{{ print $ | len }}{{ end }}", "too much memory|too many"),
        ("{{ index .L 1000 }}", "out of range"),
        ("{{ slice .L 5 1000 }}", "out of range"),
        ("{{ slice .L -1 }}", "out of range"),
        ("{{ index .Secret 1000 }}", "out of range"),
        ("{{ .Secret.Words }}", "string has no field Words"),
        ("{{ .Secret 1 }}", "Secret is no function"),
        ("{{ lt .Secret 1 }}", "cannot be compared"),
        ("{{ .L.append }}", "has no field append"),
        ("{{ .M.keys.X }}", "X is wanted of nil"),
        ("{{ .__class__.__mro__ }}", "is wanted of nil"),
        ("{{ call .L }}", "there is no function call"),
    ],
)  # fmt: skip
def test_nothing_goes_beyond_its_bounds(source: str, reason: str) -> None:
    said = refused(source)
    assert any(part in said for part in reason.split("|"))


def test_memory_is_bounded_while_a_template_does_its_worst() -> None:
    tracemalloc.start()
    try:
        refused(DOUBLING % "print $x $x")
        refused('{{ $x := "" }}{{ range 100000 }}{{ $x = printf "%s%99999s" $x "é" }}{{ end }}')
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_slice_copies_nothing() -> None:
    long = {"L": ["x"] * 20_000}
    source = "{{ range $i, $_ := .L }}{{ if eq (len (slice $.L $i)) 1 }}{{ $i }}{{ end }}{{ end }}"
    assert render(source, long, Limits(steps=1_000_000, output=10, built=10_000)) == "19999"


def test_values_that_are_nested_without_end_are_refused() -> None:
    deep: Any = "hidden"
    for _ in range(500):
        deep = [deep]
    for source in ("{{ . }}", "{{ json . }}", '{{ printf "%d" . }}', "{{ html . }}"):
        with pytest.raises(GoTemplateError, match="nested too deeply") as caught:
            render(source, deep)
        assert "hidden" not in str(caught.value)


def test_a_caller_deep_in_its_stack_gets_an_error_and_no_crash() -> None:
    source = "{{ if 1 }}" * 50 + "{{ len (print (print (print 1))) }}" + "{{ end }}" * 50

    def deep(levels: int) -> str:
        return deep(levels - 1) if levels else render(source)

    assert deep(0) == "1"
    with pytest.raises((GoTemplateError, RecursionError)):
        deep(sys.getrecursionlimit() - 150)


def test_threads_may_share_a_template() -> None:
    shared = Template.parse("{{ $n := 0 }}{{ range . }}{{ $n = . }}{{ end }}{{ $n }}")
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda n: shared.render(list(range(n + 1)), LIMITS), range(64)))
    assert texts == [str(n) for n in range(64)]


PIECES = [
    *("{{", "}}", "{{-", "-}}", "{{- ", " -}}", "(", ")", "|", ",", ":=", "=", " ", "\n", "."),
    *("if", "else", "end", "range", "with", "define", "template", "block", "break", "continue"),
    *("$", "$x", ".L", ".M.a", ".D", "nil", "true", "1", "-1", "1e9", "'x'", '"a"', "`b`", '"%9d"'),
    *("and", "or", "not", "eq", "lt", "len", "index", "slice", "print", "printf", "json", "html"),
    *("{{ end }}", "{{ if .L }}", "{{ range .L }}", "{{/*", "*/}}", "x", "é", "\\", '"', "'"),
]


def ends_well(source: str) -> None:
    """Parsed or refused, rendered or refused, and never more than its bounds."""
    limits = Limits(steps=2_000, output=10_000, built=100_000)
    text, error = "", None
    try:
        text = render(source, DATA, limits)
    except GoTemplateError as caught:
        error = caught
    assert len(text.encode()) <= 4 * limits.output
    if error:
        assert 1 <= error.line <= source.count("\n") + 1
        assert "hidden" not in str(error)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_pieces_of_the_language_end_well(source: str) -> None:
    ends_well(source)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60).map(lambda text: f"{{{{{text}}}}}"))
def test_any_text_ends_well(source: str) -> None:
    ends_well(source)


def test_damaged_templates_end_well() -> None:
    chance = random.Random(8)
    for source in load("language.json")["templates"]:
        for _ in range(3):
            start = chance.randrange(len(source) + 1)
            end = start + chance.randrange(6)
            ends_well(source[:start] + chance.choice(PIECES) + source[end:])
