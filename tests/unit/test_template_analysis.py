"""Hostile templates against the real process in which they are tried."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.conversation import analysis
from pronk.workers.conversation.analysis import analysed, found_out
from pronk.workers.conversation.choice import choose_template, request_template
from pronk.workers.conversation.formats.description import Format
from pronk.workers.conversation.jinja import Broken
from pronk.workers.conversation.turns import Turn
from support import templates

DOUBLING = (
    "{% set n = namespace(x='x' * 100) %}{% for i in range(40) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}"
)
GO = "{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}"
SAYS = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def test_the_process_says_what_this_one_would_say() -> None:
    for source in (templates.BRACKETS, templates.TEXTUAL, GO):
        found = analysis.analyse(source)
        assert found_out(source) == json.loads(json.dumps(found))
        assert analysed(source) == analysed("", {analysis.key_of(""): found})


def test_the_process_is_told_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def noted(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        given.update(options)
        return run(command, **options)  # type: ignore[call-overload]

    run = subprocess.run
    monkeypatch.setenv("PRONK_REGISTRIES", '{"r": {"token": "secret"}}')
    monkeypatch.setattr(analysis.confined.subprocess, "run", noted)
    assert "traits" in found_out(SAYS + "{# tried with nothing of ours #}")
    assert given["env"] == {}


def test_a_template_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = analysed(SAYS)
    monkeypatch.setattr(analysis.confined, "run", lambda *_, **__: pytest.fail("tried again"))
    assert analysed(SAYS) == first


def test_what_the_store_knows_is_not_found_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two templates that nobody has tried: whoever tries one now fails."""
    monkeypatch.setattr(analysis.confined, "run", lambda *_, **__: pytest.fail("tried"))
    fresh, broken = SAYS + "{# known #}", SAYS + "{# known to be broken #}"
    known = {
        analysis.key_of(fresh): analysis.analyse(SAYS),
        analysis.key_of(broken): {"broken": "it says so"},
    }
    chosen = choose_template(fresh, broken, "", bos="", eos="", known=known)
    assert chosen
    assert chosen.source == fresh


@pytest.mark.parametrize(
    ("source", "fills"),
    [
        ("{{ .Prompt }}{{ .Suffix }}", True),
        ("{{ if $.Suffix }}{{ end }}", True),
        ("{{ .Prompt }} .Suffix", False),
        ("{{ prompt }}{{ suffix }}", False),  # no template of a model in Jinja is asked for that
    ],
)
def test_whether_a_template_fills_gaps_is_told(source: str, fills: bool) -> None:
    assert analysis.analyse(source)["insert"] is fills


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% if %}", "syntax error"),
        ("{% for a in range(99999) %}{% for b in range(9) %}x{% endfor %}{% endfor %}", "fuel"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ ''.__class__.__mro__ }}", "undefined"),
        ("{{ messages.__init__.__globals__ }}", "undefined"),
        ("{% include '/etc/passwd' %}", "."),
        (DOUBLING, "too much memory or time"),
        ("{{ 'x' * 20000000 }}", "far more than it was given"),
        # Only for conversations with a system message, and for words of the template's own.
        ("{% if messages[0].role == 'system' %}" + DOUBLING + "{% endif %}" + SAYS, "too much"),
        ("{% if 'abracadabra' in messages[0].content %}" + DOUBLING + "{% endif %}" + SAYS, "much"),
        ("{% if messages | length > 150 %}" + DOUBLING + "{% endif %}" + SAYS, "too much"),
    ],
)
def test_a_model_with_a_hostile_template_is_not_loaded(source: str, reason: str) -> None:
    with pytest.raises(PronkError, match=rf"chat template cannot be used: .*{reason}") as caught:
        choose_template(source, None, "", bos="", eos="")
    assert caught.value.code is Code.LOAD_FAILED


def test_a_hostile_layer_gives_way_to_the_ggufs_template() -> None:
    looping = "{% for a in range(99999) %}{% for b in range(9) %}{% endfor %}{% endfor %}"
    chosen = choose_template(SAYS, looping, "", bos="", eos="")
    assert chosen
    assert chosen.render([Turn("user", "U")]) == "user:U;"


def test_a_template_for_some_conversations_only_is_used_for_them() -> None:
    chosen = choose_template("{{ messages[1].content }}", None, "", bos="", eos="")
    assert chosen
    with pytest.raises(PronkError, match="chat template failed"):
        chosen.render([])


def test_what_cannot_be_used_says_so_and_not_what_it_was_given() -> None:
    with pytest.raises(Broken) as caught:
        analysed("{{ messages[0].content.nothing.at_all }}")
    assert str(caught.value).startswith("undefined value")


def test_of_a_template_that_was_tried_its_source_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request may bring a long one, and many requests many."""
    found = {"broken": "it says so"}
    monkeypatch.setattr(analysis.confined, "run", lambda *_, **__: dict(found))
    monkeypatch.setattr(analysis, "_found", OrderedDict())
    for number in range(2 * analysis._MOST_KEPT):
        assert found_out(f"{{{{ {number} }}}}") == found
    assert len(analysis._found) == analysis._MOST_KEPT
    assert {len(key) for key in analysis._found} == {64}
    monkeypatch.setattr(analysis.confined, "run", lambda *_, **__: pytest.fail("tried again"))
    assert found_out(f"{{{{ {number} }}}}") == found


@pytest.mark.parametrize("sign", ["{{ prompt }}", "{{ .Prompt }}", "{% if 1 %}{% endif %}"])
def test_a_requests_template_may_not_be_longer_than_any_is(sign: str) -> None:
    with pytest.raises(PronkError, match="template: it has more than 65536 characters") as caught:
        request_template(sign + "x" * 65_536, bos="", eos="")
    assert caught.value.code is Code.INVALID_REQUEST
    request_template(sign + "x" * 65_000, bos="", eos="")


def test_a_requests_template_is_helped_where_it_refuses_its_conversation() -> None:
    own = request_template(templates.TURNS, bos="<s>", eos="")
    assert own.render([Turn("system", "S"), Turn("user", "U")]) == (
        "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n"
    )
    refusing = request_template("{{ raise_exception('never') }}", bos="", eos="")
    with pytest.raises(PronkError, match="template: it refuses this: never") as caught:
        refusing.render([Turn("system", "S"), Turn("user", "U")])
    assert caught.value.code is Code.INVALID_REQUEST


def test_a_derivation_that_fails_leaves_a_model_that_answers_with_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*ways: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(analysis, "derive", fails)
    found = analysis.analyse(templates.BRACKETS)
    assert Format.from_json(found["format"]).plain
    assert "too deep" in capsys.readouterr().err


def test_the_program_starts_without_what_it_does_not_need() -> None:
    """It runs for every template that the store does not know yet."""
    source = (
        f"import sys, {analysis.__name__}; print([m for m in ('pydantic', 'llama_cpp', 'zmq', "
        "'numpy', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"
