"""Templates that turn on their worker for some conversations only, in the real processes that
render them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psutil
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.conversation import coprocess
from pronk.workers.conversation.choice import choose_template
from pronk.workers.conversation.coprocess import MOST, Coprocesses
from pronk.workers.conversation.jinja import Broken, Complaint, Spent
from pronk.workers.conversation.renders import LOOP, here, lastingly
from pronk.workers.conversation.template import Template
from pronk.workers.conversation.turns import Turn
from support.server import PATIENCE, wait_for

SAYS = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
SESAME = "Open sesame"
"""What no analysis tries."""

HOSTILE = {
    "doubles": "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "replaces": "{% for i in range(60) %}{% set n.x = n.x|replace('x', n.x) %}{% endfor %}",
    "pads": "{{ '%4000000000s' | format('x') | length }}",
    "indents JSON": "{{ [[1]] | tojson(indent=4000000000) | length }}",
}
SLOW = {
    "doubles a list": "{% for i in range(60) %}{% set n.l = n.l + n.l %}{% endfor %}"
    "{{ n.l | length }}",
    "changes a long text": "{% set n.x = 'x' * 4000000 %}{% for i in range(30000) %}"
    "{% set n.y = n.x | upper %}{% endfor %}",
}


def gated(hostile: str) -> str:
    """A template that does harm where the last message says the word."""
    return (
        "{% set n = namespace(x='xx', l=[1, 2]) %}"
        "{% if messages and messages[-1].content == '" + SESAME + "' %}" + hostile + "{% endif %}"
    ) + SAYS


@pytest.fixture
def processes() -> Iterator[Coprocesses]:
    processes = Coprocesses(LOOP)
    yield processes
    processes.close()
    assert not children()


def children() -> list[psutil.Process]:
    """The processes of the loop that this one has."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        try:
            if LOOP in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def of_model(source: str, processes: Coprocesses) -> Template:
    """A model's template as a worker has it."""
    chosen = choose_template(
        source, None, "", bos="<s>", eos="", render=lambda source: lastingly(source, processes)
    )
    assert chosen
    return chosen


@pytest.mark.parametrize("way", HOSTILE)
def test_a_conversation_that_blows_up_its_template_is_refused_alone(
    way: str, processes: Coprocesses
) -> None:
    template = of_model(gated(HOSTILE[way]), processes)
    for _ in range(2):
        with pytest.raises(
            PronkError, match=r"template failed: it takes too much memory"
        ) as caught:
            template.render([Turn("user", SESAME)])
        assert caught.value.code is Code.INVALID_REQUEST
        assert template.render([Turn("user", "U")]) == "user:U;"


@pytest.mark.parametrize("way", SLOW)
def test_what_takes_no_memory_but_time_ends_too(
    way: str, processes: Coprocesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = of_model(gated(SLOW[way]), processes)
    with monkeypatch.context() as patched:
        patched.setattr(coprocess, "SECONDS", 0)
        with pytest.raises(PronkError, match="too much memory or time"):
            template.render([Turn("user", SESAME)])
    assert template.render([Turn("user", "U")]) == "user:U;"


def test_who_is_held_up_holds_up_nobody_else(processes: Coprocesses) -> None:
    """A process that is stopped takes its time on the clock; the others render meanwhile."""
    template = of_model(SAYS, processes)
    assert template.render([Turn("user", "U")]) == "user:U;"
    (stopped,) = children()
    stopped.suspend()
    with ThreadPoolExecutor(9) as threads:
        held = threads.submit(template.render, [Turn("user", "held")])
        wait_for(lambda: processes._free.empty(), "the stopped process to be taken")
        texts = [threads.submit(template.render, [Turn("user", str(n))]) for n in range(8)]
        assert [text.result() for text in texts] == [f"user:{n};" for n in range(8)]
        assert not held.done()
        assert 1 < len(children()) <= MOST
        stopped.resume()
        assert held.result() == "user:held;"


def test_a_process_that_does_not_answer_is_given_up(
    processes: Coprocesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = of_model(SAYS, processes)
    (stopped,) = children()
    stopped.suspend()
    monkeypatch.setattr(coprocess, "PATIENCE", 0.1)
    with pytest.raises(PronkError, match="too much memory or time"):
        template.render([Turn("user", "U")])
    assert not stopped.is_running()
    monkeypatch.undo()
    assert template.render([Turn("user", "U")]) == "user:U;"


def test_a_process_that_somebody_kills_is_missed_by_nobody(processes: Coprocesses) -> None:
    template = of_model(SAYS, processes)
    for _ in range(3):
        (process,) = children()
        process.kill()
        assert template.render([Turn("user", "U")]) == "user:U;"


def test_where_no_process_can_be_started_the_reason_is_not_the_conversations(
    processes: Coprocesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    template = of_model(SAYS, processes)
    (process,) = children()
    with monkeypatch.context() as patched:
        patched.setattr(coprocess.subprocess, "Popen", fails)
        process.kill()
        with pytest.raises(PronkError, match="try again") as caught:
            template.render([Turn("user", "U")])
        assert caught.value.code is Code.UNAVAILABLE
    assert template.render([Turn("user", "U")]) == "user:U;"


def test_threads_share_the_processes(processes: Coprocesses) -> None:
    write = lastingly(SAYS, processes)
    texts = [f"{n} " * n for n in range(64)]
    with ThreadPoolExecutor(8) as threads:
        written = threads.map(
            lambda text: write(10_000, 10_000, {"messages": [{"role": "r", "content": text}]}),
            texts,
        )
        assert list(written) == [f"r:{text};" for text in texts]


@pytest.mark.parametrize(
    "variables",
    [
        {"x": "a\0b\u2028\U00020000\r\n"},
        {"x": 2**80},
        {"x": -1.5e300},
        {"x": [None, True, {"é": []}]},
        {"x": "long" * 1_000_000},
    ],
)
def test_there_comes_out_what_comes_out_here(
    variables: dict[str, object], processes: Coprocesses
) -> None:
    source = "{{ x }}{{ x | tojson }}{{ y is defined }}"
    given = (10_000, 10**8, variables)
    assert lastingly(source, processes)(*given) == here(source)(*given)


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("{{ raise_exception('never: é') }}", Complaint, "never: é"),
        ("{% if %}", Broken, "syntax error"),
        ("{{ 'x' * 2000 }}", Broken, "writes far more"),
        ("{% for i in range(9999) %}{% endfor %}", Broken, "fuel"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Broken, "recursion"),
    ],
)
def test_a_refusal_or_a_failure_is_told_and_ends_nothing(
    source: str, error: type[Exception], said: str, processes: Coprocesses
) -> None:
    write = lastingly(source, processes)
    (before,) = children()
    for _ in range(2):
        with pytest.raises(error, match=said) as caught:
            write(1000, 1000, {})
        assert not isinstance(caught.value, Spent)
    assert children() == [before]


def test_the_processes_know_nothing_of_ours(
    processes: Coprocesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    del processes
    (process,) = children()
    monkeypatch.setenv("PRONK_REGISTRIES", '{"r": {"token": "secret"}}')
    with closing(Coprocesses(LOOP)) as others:
        assert lastingly("", others)(1, 1, {}) == ""  # once it has imported all that it needs
        (other,) = (child for child in children() if child != process)
        assert not [name for name in other.environ() if not name.startswith("LC_")]
        assert {open_.path for open_ in other.open_files()} <= {"/dev/null"}


def test_they_end_with_who_gives_them_orders() -> None:
    script = (
        f"import time; from {Coprocesses.__module__} import Coprocesses; "
        f"kept = Coprocesses({LOOP!r}); print(kept._free.queue[0]._process.pid, flush=True); "
        "time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout
        process = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    process.wait(PATIENCE)
