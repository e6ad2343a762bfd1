from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import zmq

from pronk.protocol.channels import Dealer
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.fleet import PeerHeartbeat
from pronk.protocol.messages.library import (
    CallFailed,
    DescribeModel,
    ListModels,
    ModelDescribed,
    ModelList,
    ModelResolved,
    ModelShown,
    ResolveModel,
    ShowModel,
)
from pronk.protocol.process import new_incarnation
from pronk.protocol.role import CANNOT_START
from pronk.protocol.state import StateDirectory
from pronk.workers.store import service
from pronk.workers.store.catalog import QUESTIONS, Answer, Catalog, Question
from pronk.workers.store.layout import Library
from pronk.workers.store.looking import looker
from pronk.workers.store.service import Store
from support.gguf_files import LLAMA, gguf_bytes, tensor, write_out
from support.store import Ollama

PATIENCE = 60.0
"""Seconds after which a condition that should come true at once counts as never."""
COMMAND = [sys.executable, "-m", "pronk.workers", "store"]


@pytest.fixture
def state() -> Iterator[StateDirectory]:
    """Not below pytest's directory, whose path is too long for a socket."""
    root = Path(tempfile.mkdtemp(prefix="pronk-"))
    directory = StateDirectory(root)
    directory.prepare()
    yield directory
    shutil.rmtree(root)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A library with the model `phi:latest`."""
    root = tmp_path / "models"
    (root / "blobs").mkdir(parents=True)
    weights = root / "blobs" / "new"
    writer = gguf.GGUFWriter(weights, "llama")
    writer.add_context_length(2048)
    writer.add_token_list([f"token{i}" for i in range(40)])
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    write_out(writer)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    layer = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": f"sha256:{digest}",
        "size": weights.stat().st_size,
    }
    weights.rename(root / "blobs" / f"sha256-{digest}")
    manifest = root / "manifests/registry.ollama.ai/library/phi/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    return root


def environment(state: StateDirectory, models: Path, **extra: str) -> dict[str, str]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PRONK_", "OLLAMA_"))
    }
    ours = {"PRONK_STATE": str(state.root), "PRONK_MODELS": str(models), "PRONK_DEMO_MODEL": "off"}
    return inherited | ours | extra


@contextmanager
def running(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A store process that should end by itself."""
    return subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture
def process(state: StateDirectory, models: Path) -> Iterator[subprocess.Popen[bytes]]:
    with running(COMMAND, environment(state, models)) as process:
        yield process


class Asker:
    """Asks as frontends do: repeats a question under its call until an answer comes."""

    def __init__(self, endpoint: str) -> None:
        self._dealer = Dealer(endpoint, new_incarnation(), self._received)
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self.answers: list[Any] = []

    def _received(self, message: Any, body: bytes) -> None:
        self.answers.append(message)
        if future := self._waiting.pop(message.call, None):
            future.set_result(message)

    def send(self, message: Any) -> None:
        self._dealer.send(message)

    async def ask(self, question: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waiting[question.call] = future
        async with asyncio.timeout(PATIENCE):
            while not future.done():
                self._dealer.send(question)
                await asyncio.wait([future], timeout=0.5)
        return future.result()

    def close(self) -> None:
        self._dealer.close()


@pytest.fixture
async def asker(state: StateDirectory) -> AsyncIterator[Asker]:
    asker = Asker(state.store)
    yield asker
    asker.close()


def call() -> str:
    return uuid.uuid4().hex


async def test_the_process_answers_every_kind_of_question(
    process: subprocess.Popen[bytes], asker: Asker, models: Path
) -> None:
    listed = await asker.ask(ListModels(call()))
    assert isinstance(listed, ModelList)
    assert [model.name for model in listed.models] == ["phi:latest"]
    resolved = await asker.ask(ResolveModel(call(), "PHI"))
    assert isinstance(resolved, ModelResolved)
    assert (resolved.name, resolved.digest) == ("phi:latest", listed.models[0].digest)
    described = await asker.ask(DescribeModel(call(), resolved.digest))
    assert isinstance(described, ModelDescribed)
    assert described.facts.weights.startswith(str(models / "blobs"))
    shown = await asker.ask(ShowModel(call(), "phi", verbose=True))
    assert isinstance(shown, ModelShown)
    assert len(shown.model_info["tokenizer.ggml.tokens"]) == 40
    for question, code in (
        (ResolveModel(call(), "missing"), Code.NOT_FOUND),
        (ResolveModel(call(), "demo"), Code.NOT_FOUND),
        (ResolveModel(call(), "../../etc/passwd"), Code.INVALID_REQUEST),
        (DescribeModel(call(), "0" * 64), Code.NOT_FOUND),
    ):
        failed = await asker.ask(question)
        assert isinstance(failed, CallFailed)
        assert failed.failure.code is code


async def test_what_is_no_question_does_no_harm(
    process: subprocess.Popen[bytes], asker: Asker, state: StateDirectory
) -> None:
    await asker.ask(ListModels(call()))  # it listens, and what is sent to it arrives
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.linger = int(PATIENCE * 1000)
        raw.connect(state.store)
        short = b"\0\0\0\x04\x92\xa1x\x80"
        for frames in ([b""], [b"\xff" * 100], [b"a", b"b", b"c"], [short]):
            raw.send_multipart(frames)
    asker.send(PeerHeartbeat())
    assert isinstance(await asker.ask(ListModels(call())), ModelList)
    assert process.poll() is None


async def test_a_new_process_answers_what_a_killed_one_left(
    process: subprocess.Popen[bytes], asker: Asker, state: StateDirectory, models: Path
) -> None:
    assert isinstance(await asker.ask(ListModels(call())), ModelList)
    process.kill()
    process.wait()
    question = asyncio.create_task(asker.ask(ListModels(call())))
    with running(COMMAND, environment(state, models)):
        assert isinstance(await question, ModelList)


async def test_sigterm_ends_the_process(process: subprocess.Popen[bytes], asker: Asker) -> None:
    await asker.ask(ListModels(call()))
    process.terminate()
    assert process.wait(PATIENCE) == 0


HANGS = """
import threading
from pronk.workers.store import catalog, service
def hang(self, question, *, content=False):
    print("asked", flush=True)
    threading.Event().wait()
catalog.Catalog.answer = hang
service.main()
"""


async def test_sigterm_ends_the_process_even_when_a_disk_hangs(
    asker: Asker, state: StateDirectory, models: Path
) -> None:
    with running([sys.executable, "-c", HANGS], environment(state, models)) as process:
        assert process.stdout
        asking = asyncio.create_task(asker.ask(ListModels(call())))
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), PATIENCE)
        assert line == b"asked\n"
        asking.cancel()
        process.terminate()
        assert process.wait(PATIENCE) == 0


async def test_a_second_process_on_the_same_directory_refuses_with_one_line(
    process: subprocess.Popen[bytes], asker: Asker, state: StateDirectory, models: Path
) -> None:
    await asker.ask(ListModels(call()))
    second = await asyncio.to_thread(ended, environment(state, models))
    assert second.returncode == CANNOT_START
    assert second.stderr.count("\n") == 1
    assert "another server runs on this directory" in second.stderr
    assert isinstance(await asker.ask(ListModels(call())), ModelList)


@pytest.mark.parametrize(
    "bad", [{"PRONK_DEMO_MODEL": "maybe"}, {"PRONK_MODELS": os.fsdecode(b"/tmp/\xff")}]
)
def test_a_bad_setting_ends_with_one_line(
    state: StateDirectory, models: Path, bad: dict[str, str]
) -> None:
    refused = ended(environment(state, models, **bad))
    assert refused.returncode == CANNOT_START
    assert refused.stderr.count("\n") == 1
    assert next(iter(bad)) in refused.stderr


class GatedCatalog(Catalog):
    """Answers when the gate is opened, as a slow disk does."""

    def __init__(self, models: Path) -> None:
        super().__init__(Library(models), None)
        self.gate = threading.Event()
        self.gated: tuple[type[Any], ...] = QUESTIONS
        self.asked = 0

    def answer(self, question: Question, *, content: bool = False) -> Answer:
        self.asked += not content  # a list that was to be completed is asked for once more
        if isinstance(question, self.gated) and not self.gate.wait(PATIENCE):
            raise PronkError(Code.INTERNAL, "the gate stayed closed")
        return super().answer(question, content=content)


@pytest.fixture
async def slow(state: StateDirectory, models: Path) -> AsyncIterator[GatedCatalog]:
    catalog = GatedCatalog(models)
    store = Store(state.store, catalog)
    yield catalog
    catalog.gate.set()
    store.close()


async def test_a_question_repeated_while_it_is_answered_gets_one_answer(
    slow: GatedCatalog, asker: Asker
) -> None:
    question = ListModels(call())
    for _ in range(20):
        asker.send(question)
    last = asyncio.create_task(asker.ask(ListModels(call())))
    async with asyncio.timeout(PATIENCE):
        while slow.asked < 2:
            await asyncio.sleep(0.01)
    slow.gate.set()
    await last
    async with asyncio.timeout(PATIENCE):
        while question.call not in [answer.call for answer in asker.answers]:
            await asyncio.sleep(0.01)
    # What else would come has come when the answer to a later question is here.
    await asker.ask(ListModels(call()))
    assert [answer.call for answer in asker.answers].count(question.call) == 1
    assert slow.asked == 3


async def test_questions_beyond_the_bound_are_told_to_come_back(
    slow: GatedCatalog, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_QUESTIONS", 3)
    waiting = [asyncio.create_task(asker.ask(ListModels(call()))) for _ in range(3)]
    async with asyncio.timeout(PATIENCE):
        while slow.asked < 2:
            await asyncio.sleep(0.01)
    refused = await asker.ask(ListModels(call()))
    assert isinstance(refused, CallFailed)
    assert refused.failure.code is Code.UNAVAILABLE
    assert refused.failure.retry_after
    slow.gate.set()
    assert all(isinstance(answer, ModelList) for answer in await asyncio.gather(*waiting))


async def test_hundreds_of_clients_may_ask_for_a_name_at_once(
    slow: GatedCatalog, asker: Asker
) -> None:
    waiting = [asyncio.create_task(asker.ask(ResolveModel(call(), "phi"))) for _ in range(500)]
    async with asyncio.timeout(PATIENCE):
        while slow.asked < 2:
            await asyncio.sleep(0.01)
    slow.gate.set()
    assert all(isinstance(answer, ModelResolved) for answer in await asyncio.gather(*waiting))


async def test_lists_that_take_long_do_not_hold_up_what_requests_need(
    slow: GatedCatalog, asker: Asker
) -> None:
    slow.gated = (ListModels, ShowModel)
    lists = [asyncio.create_task(asker.ask(ListModels(call()))) for _ in range(20)]
    assert isinstance(await asker.ask(ResolveModel(call(), "phi")), ModelResolved)
    assert not any(waiting.done() for waiting in lists)
    slow.gate.set()
    await asyncio.gather(*lists)


async def test_a_fault_of_ours_is_answered_without_its_details(
    slow: GatedCatalog, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Catalog, question: Question) -> Answer:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(GatedCatalog, "answer", fail)
    failed = await asker.ask(ListModels(call()))
    assert isinstance(failed, CallFailed)
    assert failed.failure.code is Code.INTERNAL
    assert "secret" not in failed.failure.message


async def test_hostile_templates_hold_up_nothing_else(
    state: StateDirectory, models: Path, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as are tried at a time, and one more, none of which ever ends."""
    names = [f"hostile{number}" for number in range(looker.TEMPLATES + 1)]
    library = Ollama(models)
    (weights,) = [path.read_bytes() for path in (models / "blobs").iterdir()]
    for name in names:
        template = library.layer("template", f"{name} {{% for a in messages %}}{{% endfor %}}")
        library.add(f"registry.ollama.ai/library/{name}/latest", weights, template)
    gate, tried = threading.Event(), list[str]()

    def hangs(source: str) -> dict[str, Any]:
        tried.append(source)
        assert gate.wait(PATIENCE)
        return {"broken": "it takes too much memory or time"}

    monkeypatch.setattr(looker, "found_out", hangs)
    store = Store(state.store, Catalog(Library(models), None))
    try:
        questions = [
            question(call(), name) for name in names for question in (ResolveModel, ShowModel)
        ]
        waiting = [asyncio.create_task(asker.ask(question)) for question in questions]
        async with asyncio.timeout(PATIENCE):
            while len(tried) < looker.TEMPLATES:
                await asyncio.sleep(0.01)
        listed = await asker.ask(ListModels(call()))
        assert {model.name for model in listed.models} >= {"phi:latest", "hostile0:latest"}
        resolved = await asker.ask(ResolveModel(call(), "phi"))  # of which nothing was known
        assert isinstance(resolved, ModelResolved)
        assert isinstance(await asker.ask(DescribeModel(call(), resolved.digest)), ModelDescribed)
        assert isinstance(await asker.ask(ShowModel(call(), "phi")), ModelShown)
        assert not any(task.done() for task in waiting)
        gate.set()
        answers = await asyncio.gather(*waiting)
    finally:
        gate.set()
        store.close()
    assert all(isinstance(answer, ModelResolved | ModelShown) for answer in answers)
    assert len(tried) == len(names)  # each of them once, whoever asked


async def test_a_model_whose_tensors_lie_outside_its_file_harms_nobody(
    process: subprocess.Popen[bytes], asker: Asker, models: Path
) -> None:
    outside = gguf_bytes(tensor(offset=1 << 40), pairs=[LLAMA], data=128)
    absurd = struct.pack("<4sIQQ", b"GGUF", 3, 2**64 - 1, 2**64 - 1)
    library = Ollama(models)
    library.add("registry.ollama.ai/library/outside/latest", outside)
    library.add("registry.ollama.ai/library/absurd/latest", absurd, config={})
    listed = await asker.ask(ListModels(call()))
    assert {model.name for model in listed.models} == {
        "phi:latest",
        "outside:latest",
        "absurd:latest",
    }
    for name, reason in (("outside", "behind the end of the file"), ("absurd", "metadata entries")):
        shown = await asker.ask(ShowModel(call(), name, verbose=True))
        assert isinstance(shown, ModelShown)
        assert shown.modelfile
        resolved = await asker.ask(ResolveModel(call(), name))
        refused = await asker.ask(DescribeModel(call(), resolved.digest))
        assert isinstance(refused, CallFailed)
        assert refused.failure.code is Code.LOAD_FAILED
        assert reason in refused.failure.message
    assert isinstance(await asker.ask(ShowModel(call(), "phi")), ModelShown)
    assert process.poll() is None
