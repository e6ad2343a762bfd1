"""`pronk template check`: what it prints of good, odd and hostile templates, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from pronk.workers.conversation.formats import check
from pronk.workers.conversation.formats.description import Calls, Format, Markers
from pronk.workers.store.demo import WEIGHTS
from pronk.workers.store.gguf_metadata import CHAT_TEMPLATE, read_header
from support.answers import BY_NAME
from support.chat_templates import Family
from support.cli import pronk
from support.played_api import PlayedApi

HERMES, TAGGED, PLAIN, GO_CHATML = (
    BY_NAME[name].source for name in ("hermes", "tagged", "plain", "go chatml")
)


def run(*arguments: str, stdin: str = "", status: int = 0) -> Result:
    return pronk("template", "check", *arguments, stdin=stdin, status=status)


def found(result: Result) -> dict[str, Any]:
    return json.loads(result.stdout)


def test_a_file(tmp_path: Path):
    file = tmp_path / "chat.jinja"
    file.write_text(HERMES)
    lines = [line.split() for line in run(str(file)).stdout.splitlines()]
    assert ["language", "Jinja"] in lines
    assert ["capabilities", "completion,", "tools,", "thinking"] in lines
    assert ["reasoning", '"<think>\\n"', "…", '"\\n</think>\\n\\n"'] in lines
    assert ["each", "call", '"<tool_call>\\n"', "…", '"\\n</tool_call>"'] in lines
    assert ["two", "calls", "passed"] in lines
    assert ["nested", "arguments", "and", "unicode", "passed"] in lines


def test_the_built_in_model_passes_every_case(tmp_path: Path):
    template = read_header(WEIGHTS).metadata[CHAT_TEMPLATE]
    (file := tmp_path / "demo.jinja").write_text(template)
    said = found(run(str(file), "--json"))
    assert said["capabilities"] == ["tools", "thinking"]
    assert {case["outcome"] for case in said["cases"]} == {"passed"}
    assert template == (WEIGHTS.parent / "training" / "chat_template.jinja").read_text()


def test_json(tmp_path: Path):
    file = tmp_path / "chat"  # Go, and no name that says so
    file.write_text(GO_CHATML)
    said = found(run(str(file), "--json"))
    assert said["language"] == "go"
    assert said["capabilities"] == ["tools", "thinking"]
    assert said["passed"] is True
    assert {case["outcome"] for case in said["cases"]} == {"passed"}
    form = Format.from_json(said["format"])
    assert form.calls
    assert form.calls.each == Markers("<tool_call>\n", "\n</tool_call>")


def test_a_model_of_the_server(api: PlayedApi):
    api.models["m"] = {"template": TAGGED, "capabilities": []}
    said = found(run("m", "--host", api.url, "--json"))
    assert said["format"]["calls"]["syntax"] == "tagged"
    api.models["bare"] = {"template": "", "capabilities": []}
    assert "bare has no chat template" in run("bare", "--host", api.url, status=1).stderr
    assert "missing" in run("missing", "--host", api.url, status=1).stderr


def test_calls_without_a_marker():
    lines = run("-", stdin=family("glm-4-9b")).stdout
    assert "nothing but the name of a tool of the request, where an answer begins" in lines
    assert "one call                         passed" in lines
    lines = run("-", stdin=family("chatglm-3"), status=1).stdout
    assert "not read: nothing tells them from text" in lines
    lines = run("-", stdin=family("functiongemma")).stdout
    assert '"<escape>" … "<escape>", keys without' in lines
    lines = run("-", stdin=BY_NAME["bare object"].source).stdout
    assert "nothing: one is a call if it calls a tool of the request" in lines


def family(name: str) -> str:
    return Family(name, folder="families").source


def test_standard_input():
    result = run("-", stdin=PLAIN)
    assert "calls               none" in result.stdout
    assert "left out: the template does not write the call" in result.stdout


def test_a_case_that_fails_is_the_exit_status(monkeypatch: pytest.MonkeyPatch):
    derived = check.derive

    def wrong(*renderings: Any) -> Format:
        form = derived(*renderings)
        assert form.calls
        return replace(form, calls=replace(form.calls, each=Markers("<call>", "</call>")))

    monkeypatch.setattr(check, "derive", wrong)
    said = check.check_template({"source": HERMES})
    assert said["passed"] is False
    assert isinstance(form := Format.from_json(said["format"]).calls, Calls)
    assert form.each.start == "<call>"

    from pronk.frontend.cli import templates

    monkeypatch.setattr(templates, "_examined", lambda source: said)
    result = run("-", stdin=HERMES, status=1)
    assert "one call                         failed: in pieces of 1: " in result.stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}", "unexpected end of input"),
        ("{{ raise_exception('Not me.') }}", "Not me."),
        ("{{ messages.__class__.__mro__[1] }}", "undefined"),
        (
            "{% set ns = namespace(s='x') %}{% for i in range(40) %}"
            "{% set ns.s = ns.s + ns.s %}{% endfor %}",
            "too much memory or time",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
            "fuel",
        ),
    ],
    ids=["syntax", "complaint", "attributes", "memory", "recursion", "loop"],
)
def test_templates_that_cannot_be_used(source: str, reason: str):
    line = run("-", stdin=source, status=1).stderr
    assert line.startswith("Error: the template cannot be used: ")
    assert reason in line


def test_a_mistake_of_our_own_is_none_of_the_template(monkeypatch: pytest.MonkeyPatch):
    from pronk.frontend.cli import templates

    monkeypatch.setattr(templates, "_PROGRAM", "pronk.no_such_program")
    assert "a mistake in Pronk" in run("-", stdin=PLAIN, status=1).stderr


def test_files_that_cannot_be_read(tmp_path: Path):
    assert "no such file" in run(str(tmp_path / "none.jinja"), status=1).stderr
    file = tmp_path / "large.jinja"
    file.write_text("x" * (2 * 1024 * 1024 + 1))
    assert "more than 2 MiB" in run(str(file), status=1).stderr
