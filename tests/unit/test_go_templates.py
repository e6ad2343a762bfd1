"""The language of Go's templates, compared with what Go itself writes, and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from pronk.workers.conversation.gotemplate import GoTemplateError, Limits, Template
from pronk.workers.conversation.gotemplate.values import Map, Slice, Struct
from support.go_templates import load, stop_the_calendar

LIMITS = Limits(steps=100_000, output=100_000, built=1_000_000)


def render(source: str, data: Any = None) -> str:
    return Template.parse(source).render(data, LIMITS)


def outcome(source: str, data: Any) -> str | None:
    try:
        return render(source, data)
    except GoTemplateError:
        return None


def test_every_template_gives_what_it_gives_in_go(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_calendar(monkeypatch)
    language, expected = load("language.json"), load("expected.json")["language"]
    assert len(language["templates"]) == len(expected) > 500
    different = {
        source: (got, expected[source])
        for source in language["templates"]
        if (got := outcome(source, language["data"])) != expected[source]
    }
    assert not different


class Point(Struct):
    go_type = "main.Point"
    methods = {"Sum": lambda point: point.fields["X"] + point.fields["Y"]}  # noqa: RUF012
    json_names = {"X": "x"}  # noqa: RUF012
    json_omits = frozenset(("Z",))


class Pointer(Point):
    is_pointer = True


class Points(Slice):
    go_type = "[]main.Point"
    methods = {"String": lambda points: f"{len(points)} points"}  # noqa: RUF012


class Places(Map):
    go_type = "map[string]main.Point"

    def zero(self) -> Any:
        return Point(X=0, Y=0, Z=None)


POINT = Point(X=1, Y=2, Z=None)
DATA = {
    "P": POINT,
    "Q": Pointer(X=3, Y=4, Z=None),
    "L": Points([POINT, POINT]),
    "E": Points(),
    "M": Places(a=POINT),
}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ .P.X }}{{ .P.Sum }}{{ .Q.Y }}", "134"),
        ("{{ .P }}{{ .Q }}{{ print .Q }}", "{1 2 <nil>}{3 4 <nil>}&{3 4 <nil>}"),
        (
            '{{ printf "%+v %T %T %T %T" .P .P .Q .L .M }}',
            "{X:1 Y:2 Z:<nil>} main.Point *main.Point []main.Point map[string]main.Point",
        ),
        ("{{ .L }}{{ .L.String }}{{ slice .L 1 }}{{ len .L }}", "2 points2 points1 points2"),
        ('{{ print .L }}{{ html .L "<" }}', "2 points2 points&lt;"),
        ('{{ printf "%s|%q|%d" .E .E .L }}', '0 points|"0 points"|[{1 2 <nil>} {1 2 <nil>}]'),
        ("{{ .M }}{{ .M.b.X }}{{ (index .M `b`).Y }}", "map[a:{1 2 <nil>}]00"),
        (
            "{{ json .P }}{{ json .E }}{{ json (slice .L 1) }}",
            '{"x":1,"Y":2}null[{"x":1,"Y":2}]',
        ),
        ("{{ range .L }}{{ .X }}{{ end }}{{ range .E }}{{ else }}none{{ end }}", "11none"),
        ("{{ if .P }}a{{ end }}{{ if .E }}b{{ end }}{{ if .L }}c{{ end }}", "ac"),
        ("{{ eq .E nil }}{{ eq .L nil }}{{ eq .Q .Q }}", "truefalsetrue"),
        ("{{ print .X }}", "<nil>"),
    ],
)
def test_structs_and_methods_are_reached_and_written_as_in_go(source: str, text: str) -> None:
    assert render(source, DATA) == text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\n{{ .P.W }}", "line 3: main.Point has no field W"),
        ("{{ .P.Sum 1 }}", "line 1: Sum takes no arguments"),
        ("{{ 1 | .P.X }}", "line 1: X is no function and takes no arguments"),
        ("a\n{{ if\n .P ", "line 2: an action has no end"),
        ("{{ if 1 }}\n\n", "line 3: an {{end}} is missing"),
        ("x\n{{ nofunc 1 }}", "line 2: there is no function nofunc"),
        ("{{ index .L 2 }}", "line 1: index: index 2 is out of range"),
        ("{{ if 1 }}\n{{ else if len 1 }}{{ end }}", None),
        ("{{ if 0 }}\n{{ else if len 1 }}{{ end }}", "line 2: len: int has no length"),
        ("{{ range .P }}{{ end }}", "line 1: range does not go over main.Point"),
        ("{{ 1i }}", "line 1: complex numbers such as 1i are not supported"),
        ("{{ eq .P .L }}", "line 1: eq: main.Point cannot be compared with []main.Point"),
    ],
)
def test_errors_name_the_line_and_the_reason(source: str, words: str | None) -> None:
    if words is None:
        assert not render(source, DATA).strip()
        return
    with pytest.raises(GoTemplateError) as caught:
        render(source, DATA)
    assert str(caught.value) == words


def test_broken_characters_are_mended_in_what_is_written_only() -> None:
    cut = '{{ $half := slice "é" 0 1 }}{{ $rest := slice "é" 1 }}'
    assert render(cut + "{{ $half }}|") == "\ufffd|"
    assert render(cut + "{{ $half }}{{ $rest }}") == "é"
    assert render(cut + "{{ len $half }}{{ json $half }}{{ print $half | printf `%x` }}") == (
        '1"\\ufffd"c3'
    )


def test_the_names_that_a_template_mentions_are_known() -> None:
    source = '{{ define "x" }}{{ .Deep }}{{ end }}{{ range $.A.B }}{{ (len .C).D }}{{ end }}'
    assert Template.parse(source).names >= {"Deep", "A", "B", "C", "D", "$"}
    assert not Template.parse("{{ len `.X` }} .Y").names
