"""An answer goes on when the worker that was generating it is killed: its client sees a pause."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, servers, wait_for

COUNT = 2500
LONG: dict[str, Any] = {
    "model": "endless",
    "prompt": "go",
    "options": {"temperature": 0, "num_ctx": 32768, "num_predict": COUNT},
}
DIGITS = "0123456789" * (COUNT // 10)


def made(**settings: str) -> contextlib.AbstractContextManager[Server]:
    """A server whose model `endless` recites digits, whatever it is asked, and `straying` often
    does.
    """

    @contextlib.contextmanager
    def make() -> Iterator[Server]:
        with servers() as maker:
            server = maker(start=False, PRONK_WORKERS="3", PRONK_LOG_LEVEL="debug", **settings)
            weights = server.root / "endless.gguf"
            write_reciting_model(weights, ["01234567890"], context=32768)
            add_model(server.models, "endless", weights)
            straying = server.root / "straying.gguf"
            write_reciting_model(straying, ["01234567890"], context=32768, margin=4.0)
            add_model(server.models, "straying", straying)
            server.start()
            yield server

    return make()


@pytest.fixture(scope="module")
def victim() -> Iterator[Server]:
    with made() as server:
        yield server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Reader:
    """Reads one answer in the background."""

    def __init__(
        self,
        server: Server,
        pool: ThreadPoolExecutor,
        question: dict[str, Any],
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._server = server
        self._question = question
        self.end: Future[None] = pool.submit(self._read)

    def _read(self) -> None:
        path = "/api/chat" if "messages" in self._question else "/api/generate"
        url = self._server.url + path
        with httpx.stream("POST", url, json=self._question, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                with self._changed:
                    self.lines.append(json.loads(line))
                    self._changed.notify()

    def more(self) -> None:
        """Returns when something has come that was not there before, or nothing more will."""
        count = len(self.lines)

        def come() -> bool:
            return len(self.lines) > count or self.end.done()

        with self._changed:
            # Nobody notifies of the end, and of what comes too late to be waited for.
            wait_for(lambda: self._changed.wait_for(come, 0.5), "more of the answer")

    def writers(self) -> list[psutil.Process]:
        """The workers that have requests for its model: one for each, where a death is suspect."""
        model = f"{self._question['model']}:latest"
        found: list[psutil.Process] = []
        for entry in self._server.entries():
            if entry.model == model and entry.requests:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(entry.pid))
        return found

    def kill(self) -> set[int]:
        """Kills its worker once more of the answer is there; says whom."""
        self.more()
        killed = self.writers()
        for worker in killed:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()
        return {worker.pid for worker in killed}

    def survive_death(self) -> None:
        """Kills its worker, and returns when another one has the request, or nobody needs one."""
        killed = self.kill()
        wait_for(
            lambda: self.end.done() or {worker.pid for worker in self.writers()} - killed,
            "a successor, or an end",
        )

    def result(self) -> list[dict[str, Any]]:
        self.end.result(PATIENCE)
        return self.lines


def text_of(lines: list[dict[str, Any]]) -> str:
    return "".join(line.get("response") or line["message"]["content"] for line in lines[:-1])


def process_of(server: Server, worker: str) -> psutil.Process:
    """The process of a worker that the scheduler's log names."""
    found = re.search(rf"worker {worker} \(pid (\d+)\)", server.written("scheduler"))
    assert found
    return psutil.Process(int(found[1]))


def load(server: Server, question: dict[str, Any]) -> None:
    """Has the model of a question loaded, if need be."""
    few = question | {"stream": False, "options": question["options"] | {"num_predict": 1}}
    few.pop("format", None)
    path = "/api/chat" if "messages" in question else "/api/generate"
    httpx.post(server.url + path, json=few, timeout=PATIENCE).raise_for_status()


def killed(
    server: Server, pool: ThreadPoolExecutor, question: dict[str, Any], times: int = 1
) -> list[dict[str, Any]]:
    """The lines of an answer whose worker is killed in mid-stream, several times if need be."""

    def ask() -> list[dict[str, Any]]:
        load(server, question)
        reader = Reader(server, pool, question)
        for _ in range(times - 1):
            reader.survive_death()
        reader.kill()
        return reader.result()

    return server.interrupted(ask, times)


def undisturbed(server: Server, question: dict[str, Any]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(1) as pool:
        return Reader(server, pool, question).result()


@pytest.mark.parametrize("times", [1, 2])
def test_a_stream_goes_on_when_its_worker_is_killed(
    victim: Server, pool: ThreadPoolExecutor, times: int
):
    *pieces, last = killed(victim, pool, LONG, times)
    assert "".join(piece["response"] for piece in pieces) == DIGITS
    assert not any(piece["done"] for piece in pieces)
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", COUNT)
    parts = ("load_duration", "prompt_eval_duration", "eval_duration")
    assert sum(last[part] for part in parts) <= last["total_duration"]
    expected = undisturbed(victim, LONG)[-1]
    assert last["prompt_eval_count"] == expected["prompt_eval_count"]
    assert last["context"] == expected["context"]


def test_what_a_stop_text_held_back_is_neither_lost_nor_doubled(
    victim: Server, pool: ThreadPoolExecutor
):
    """Nearly all text is the beginning of one that never comes, and waits for its end."""
    options = LONG["options"] | {"stop": ["0123456789" * 2 + "x", "890123x"]}
    lines = killed(victim, pool, LONG | {"options": options})
    assert text_of(lines) == DIGITS
    assert lines[-1]["eval_count"] == COUNT


def test_each_token_comes_once_with_its_log_probability(victim: Server, pool: ThreadPoolExecutor):
    options = LONG["options"] | {"stop": ["890123x"], "num_predict": 1000}
    question = LONG | {"options": options, "logprobs": True, "top_logprobs": 1}
    lines = killed(victim, pool, question)
    told = [one for line in lines for one in line.get("logprobs", ())]
    assert "".join(one["token"] for one in told) == text_of(lines) == DIGITS[:1000]
    assert all(len(one["top_logprobs"]) == 1 for one in told)


def test_a_form_is_kept(victim: Server, pool: ThreadPoolExecutor):
    schema = {"type": "array", "items": {"type": "integer", "maximum": 999}, "minItems": 80}
    question = LONG | {"format": schema | {"maxItems": 80}}
    lines = killed(victim, pool, question)
    whole = json.loads(text_of(lines))
    assert len(whole) == 80
    assert text_of(lines) == text_of(undisturbed(victim, question))


def test_a_stream_whose_context_was_shifted_goes_on(victim: Server, pool: ThreadPoolExecutor):
    options = LONG["options"] | {"num_ctx": 256}
    lines = killed(victim, pool, LONG | {"options": options})
    assert text_of(lines) == DIGITS
    assert (lines[-1]["done_reason"], lines[-1]["eval_count"]) == ("length", COUNT)


def test_all_answers_of_a_worker_go_on_streamed_or_whole(victim: Server, pool: ThreadPoolExecutor):

    def ask() -> tuple[list[dict[str, Any]], ...]:
        load(victim, LONG)
        whole = Reader(victim, pool, LONG | {"stream": False})
        readers = [Reader(victim, pool, LONG) for _ in range(2)]
        readers[0].more()
        readers[1].kill()
        return whole.result(), *(reader.result() for reader in readers)

    (answer,), *streams = victim.interrupted(ask, 3)
    for lines in streams:
        assert text_of(lines) == DIGITS
        assert lines[-1]["eval_count"] == COUNT
    assert (answer["response"], answer["eval_count"]) == (DIGITS, COUNT)


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.3, "seed": 5}])
def test_the_demo_model_says_what_it_would_have_said(
    victim: Server, pool: ThreadPoolExecutor, options: dict[str, float]
):
    messages = [{"role": "user", "content": "Count from 1 to 100."}]
    question = {"model": "demo", "messages": messages, "options": options}
    lines = killed(victim, pool, question)
    assert text_of(lines) == ", ".join(map(str, range(1, 101))) + "."
    assert lines[-1]["eval_count"] == undisturbed(victim, question)[-1]["eval_count"]


def test_chance_goes_on_where_it_stood(victim: Server, pool: ThreadPoolExecutor):
    """The model's numbers are the same however they are computed: each draw has to be, too."""
    options = LONG["options"] | {"temperature": 1.5, "seed": 7, "ignore_eos": True}
    question = LONG | {"model": "straying", "options": options | {"num_predict": COUNT}}
    text = text_of(killed(victim, pool, question))
    assert text == text_of(undisturbed(victim, question))
    assert text != DIGITS[: len(text)]


def test_a_worker_that_hangs_is_replaced_and_its_stream_goes_on(pool: ThreadPoolExecutor):
    with made(PRONK_STALL_TIMEOUT="5s") as server:

        def ask() -> list[dict[str, Any]]:
            load(server, LONG)
            reader = Reader(server, pool, LONG)
            reader.more()
            for worker in reader.writers():
                worker.suspend()
                suspended.append(worker)
            return reader.result()

        suspended: list[psutil.Process] = []
        assert text_of(server.interrupted(ask)) == DIGITS
        wait_for(lambda: not any(worker.is_running() for worker in suspended), "their end")


def test_a_stream_goes_on_when_the_scheduler_dies_with_its_worker(
    victim: Server, pool: ThreadPoolExecutor
):
    load(victim, LONG)
    reader = Reader(victim, pool, LONG)
    reader.more()
    workers = reader.writers()
    (scheduler,) = victim.processes("pronk.scheduler")
    scheduler.kill()
    for worker in workers:
        worker.kill()
    assert text_of(reader.result()) == DIGITS
    assert reader.lines[-1]["eval_count"] == COUNT


def test_a_load_whose_worker_is_killed_is_tried_again(victim: Server, pool: ThreadPoolExecutor):
    unload = {"model": "endless", "keep_alive": 0}
    httpx.post(f"{victim.url}/api/generate", json=unload, timeout=PATIENCE).raise_for_status()
    wait_for(
        lambda: "endless:latest" not in {model["name"] for model in victim.loaded()}, "it is gone"
    )
    told = re.compile(r"worker (\w+) loads endless")
    before = len(told.findall(victim.written("scheduler")))
    url = f"{victim.url}/api/generate"
    asking = pool.submit(httpx.post, url, json=LONG | {"stream": False}, timeout=PATIENCE)
    worker = wait_for(lambda: told.findall(victim.written("scheduler"))[before:], "a load")[0]
    process_of(victim, worker).kill()
    assert asking.result(PATIENCE).json()["response"] == DIGITS


def test_a_request_that_kills_its_workers_is_given_up_and_those_beside_it_are_not(
    pool: ThreadPoolExecutor,
):
    """Whichever worker has the request is killed before it can have read the prompt."""
    with made() as server:
        load(server, LONG)
        innocent = Reader(server, pool, LONG)
        innocent.more()
        sent = re.compile(r"request (\w+) attempt \d+ goes to worker (\w+)")

        def requests() -> set[str]:
            return {request for request, _ in sent.findall(server.written("scheduler"))}

        # The one that had the model loaded, and the innocent.
        known = wait_for(lambda: len(requests()) == 2 and requests(), "what is known of the two")
        options = LONG["options"] | {"num_predict": 5}
        poison = Reader(server, pool, LONG | {"prompt": "x" * 30_000, "options": options})

        def attempts() -> list[str]:
            """The worker of each of its attempts."""
            runs = sent.findall(server.written("scheduler"))
            return [worker for request, worker in runs if request not in known]

        def news(seen: int) -> Callable[[], bool]:
            return lambda: poison.end.done() or len(attempts()) > seen

        count = 0
        while wait_for(news(count), "what becomes of it") and not poison.end.done():
            name = attempts()[count]
            count += 1
            with contextlib.suppress(psutil.NoSuchProcess):
                process_of(server, name).kill()
        assert list(poison.result()[0]) == ["error"]
        assert "not tried again" in poison.lines[0]["error"]
        assert 2 <= count <= 3, "once beside others, twice alone"
        assert text_of(innocent.result()) == DIGITS
        assert innocent.lines[-1]["eval_count"] == COUNT
