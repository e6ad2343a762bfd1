"""A real worker process, a model that recites, and this test as its scheduler and its frontend."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from pronk.protocol.codec import VERSION
from pronk.protocol.errors import Code
from pronk.protocol.messages.embedding import EmbedBody, Embedded
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    PeerHeartbeat,
    Refused,
    Role,
    SchedulerHeartbeat,
    WhoAreYou,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Caller,
    Cancel,
    ChatMessage,
    Chunks,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    Lost,
    SamplingOptions,
    Started,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import (
    Cleared,
    Load,
    Loaded,
    LoadFailed,
    Outcome,
    Released,
    Unload,
)
from support.encoder_models import CONTEXT as ENCODER_CONTEXT
from support.encoder_models import DIMENSION, write_encoder
from support.worker_stage import (
    CHAIN,
    CONTEXT,
    DIGEST,
    PATIENCE,
    Stage,
    chat,
    endless,
    staged,
    write_reciter,
)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture(scope="session")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reciter(tmp_path_factory.mktemp("models"))


SIZE = 36_000_000
"""Bytes of its KV cache alone."""


def libraries_of(pid: int) -> str:
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    return maps.read_text()


async def test_a_blank_worker_introduces_itself_and_lives(stage: Stage) -> None:
    hello = await stage.start_worker()
    assert (hello.version, hello.role, hello.phase) == (VERSION, Role.WORKER, WorkerPhase.BLANK)
    assert stage.process is not None
    assert hello.process.pid == stage.process.pid
    assert hello.model is None
    assert (await stage.inbox.wait(PeerHeartbeat)).in_flight == 0


async def test_a_blank_worker_has_not_touched_llama_cpp(stage: Stage) -> None:
    hello = await stage.start_worker()
    assert "libllama" not in libraries_of(hello.process.pid)


async def test_it_loads_and_answers_in_order(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    loaded = await stage.load(reciter)
    assert isinstance(loaded, Loaded)
    assert loaded.model.name == "reciter:latest"
    assert (loaded.model.context_length, loaded.model.slots) == (CONTEXT, 1)
    assert loaded.model.size_vram == 0
    assert loaded.model.size > SIZE
    assert loaded.duration > 0

    request, attempt = stage.ask(chat())
    assert await stage.reply.wait(Started) == Started(request, attempt, stage.worker, CONTEXT)
    tokens, text, end = await stage.answer()
    assert text == CHAIN
    assert isinstance(end, Finished)
    assert (end.request, end.attempt, end.reason) == (request, attempt, FinishReason.STOP)
    assert end.eval_count == len(tokens) == len(CHAIN.encode()) + 1, "the ending token counts"
    assert end.prompt_eval_count > 0
    assert end.prompt_eval_duration > 0
    assert end.context is None
    released = await stage.inbox.wait(Released)
    assert released == Released(request, attempt, Outcome.FINISHED, end.eval_count)


async def test_one_message_carries_what_a_step_gave_to_all_requests(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    loaded = await stage.load(reciter, parallel=3)
    assert loaded.model.slots == 3
    keys = {stage.ask(endless()) for _ in range(3)}
    together = await stage.reply.wait(Chunks, lambda m: len(m.chunks) == 3)
    assert {(chunk.request, chunk.attempt) for chunk in together.chunks} == keys
    fourth, _ = stage.ask(endless())
    assert await stage.reply.wait(Lost, lambda m: m.request == fourth)
    assert (await stage.inbox.wait(Released)).request == fourth


async def test_a_cancelled_request_leaves_and_the_next_one_is_served(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    request, attempt = stage.ask(endless())
    await stage.reply.wait(Chunks)
    assert stage.frontend.send(stage.worker, Cancel(request, attempt))
    released = await stage.inbox.wait(Released)
    assert released.outcome is Outcome.CANCELLED
    assert 0 < released.tokens < CONTEXT - 1, "it did not go on to the end of its context"

    request, attempt = stage.ask(endless())
    await stage.reply.wait(Started, lambda m: m.request == request)
    stage.tell(Cancel(request, attempt))
    assert (await stage.inbox.wait(Released)).outcome is Outcome.CANCELLED

    stage.reply.messages.clear()
    stage.ask(chat())
    assert (await stage.answer())[1] == CHAIN


async def test_another_attempt_goes_on_behind_the_tokens_of_the_first(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(chat())
    tokens, _, _ = await stage.answer()
    await stage.inbox.wait(Released)
    sent = tokens[:5]  # it ends inside of é
    body = GenerateBody(
        Kind.CHAT,
        SamplingOptions(),
        messages=[ChatMessage("user", "hello")],
        tokens=sent,
        released=4,
    )
    request, _ = stage.ask(body, attempt=2, suspect=True)
    rest, text = [], ""
    while True:
        message = await stage.reply.wait((Chunks, Finished))  # type: ignore[arg-type]
        if isinstance(message, Finished):
            break
        assert message.chunks[0].index == len(sent) + len(rest)
        rest += message.chunks[0].tokens
        text += message.chunks[0].text
    assert sent + rest == tokens
    assert text == "éfghij"
    assert message.request == request
    assert message.eval_count == len(tokens)
    assert await stage.inbox.wait((Cleared, Released)) == Cleared(request, 2)  # type: ignore[arg-type]
    assert await stage.inbox.wait((Cleared, Released)) == Released(  # type: ignore[arg-type]
        request, 2, Outcome.FINISHED, len(rest)
    )


async def test_another_attempt_first_releases_what_the_first_did_not(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(chat())
    tokens, _, _ = await stage.answer()
    messages = [ChatMessage("user", "hello")]
    body = GenerateBody(
        Kind.CHAT, SamplingOptions(), messages=messages, tokens=tokens[:4], released=1
    )
    stage.ask(body, attempt=2)
    rest, text, finished = await stage.answer(4)
    assert (tokens[:4] + rest, text) == (tokens, CHAIN[1:])
    assert finished.eval_count == len(tokens)
    # The same where nothing is left to compute.
    body = GenerateBody(
        Kind.CHAT, SamplingOptions(), messages=messages, tokens=tokens, released=len(CHAIN) - 2
    )
    stage.ask(body, attempt=2)
    assert (await stage.answer(len(tokens)))[:2] == ([], CHAIN[-2:])


async def test_a_suspect_is_reported_until_it_has_got_further(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    request, attempt = stage.ask(endless(), attempt=2, suspect=True)
    await stage.inbox.wait(Cleared)
    stage.tell(WhoAreYou(stage.boot_id))
    hello = await stage.inbox.wait(Hello)
    assert [(run.request, run.attempt, run.suspect) for run in hello.requests] == [
        (request, attempt, False)
    ]


async def test_what_it_cannot_take_is_given_back_at_once(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    blank = stage.ask(chat())
    lost = await stage.reply.wait(Lost)
    assert ((lost.request, lost.attempt), lost.failure.code) == (blank, Code.UNAVAILABLE)
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FAILED

    await stage.load(reciter)
    stage.ask(chat(), digest="e" * 64)
    assert (await stage.reply.wait(Lost)).failure.code is Code.UNAVAILABLE
    stage.ask(endless())
    await stage.reply.wait(Started)
    stage.ask(chat())
    assert (await stage.reply.wait(Lost)).failure.code is Code.UNAVAILABLE


async def test_bad_requests_get_their_reason_and_the_worker_lives_on(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(chat("long " * 1000), context_length=2048)
    _, _, failed = await stage.answer()
    assert failed.failure.code is Code.INVALID_REQUEST
    assert "num_ctx" in failed.failure.message
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FAILED

    stage.tell(
        Generate(
            uuid4().hex,
            1,
            "reciter:latest",
            DIGEST,
            Caller(),
            stage.frontend_id,
            stage.state.frontend(stage.frontend_id),
            7,
            1,
        ),
        b"\xc1 no body",
    )
    assert (await stage.answer())[2].failure.code is Code.INTERNAL
    stage.ask(chat())
    assert (await stage.answer())[1] == CHAIN


async def test_messages_out_of_place_are_ignored(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    stage.tell(Released("0" * 32, 1, Outcome.FINISHED, 0))
    stage.tell(Cancel("0" * 32, 1))
    assert isinstance(await stage.load(reciter), Loaded)
    details = ModelDetails("", "gguf", "llama", [], "", "")
    stage.tell(Load(ModelFacts("other", "e" * 64, "/nowhere", 1, 1, details), 8, 1))
    stage.ask(chat())
    assert (await stage.answer())[1] == CHAIN


@pytest.fixture(params=["truncated", "random", "empty", "missing"])
def no_model(request: pytest.FixtureRequest, reciter: Path, tmp_path: Path) -> Path:
    """A file that cannot be loaded, at a path that nobody may read about."""
    weights = tmp_path / "secret-place" / "blob"
    weights.parent.mkdir()
    data = reciter.read_bytes()
    content = {"truncated": data[: len(data) // 2], "random": os.urandom(100_000), "empty": b""}
    if request.param in content:
        weights.write_bytes(content[request.param])
    return weights


async def test_a_file_that_is_no_model_fails_to_load_with_a_reason(
    stage: Stage, no_model: Path
) -> None:
    await stage.start_worker()
    failed = await stage.load(no_model)
    assert isinstance(failed, LoadFailed)
    assert failed.digest == DIGEST
    assert failed.failure.code is Code.LOAD_FAILED
    message = failed.failure.message
    assert message.startswith("reciter:latest could not be loaded: ")
    assert len(message) > len("reciter:latest could not be loaded: ") + 10
    assert "secret-place" not in message
    stage.tell(Unload("its model could not be loaded"))
    assert await stage.exit_status() == 0


def crashes(stage: Stage) -> bool:
    return stage.state.crash_record("w-0").exists()


async def test_unload_ends_the_process_and_what_ran_there_hears_of_it(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(endless())
    await stage.reply.wait(Chunks)
    stage.tell(Unload("test"))
    assert (await stage.reply.wait(Lost)).failure.code is Code.UNAVAILABLE
    assert await stage.exit_status() == 0
    assert not crashes(stage)


async def test_sigterm_ends_it_in_the_middle_of_a_decode(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(endless())
    await stage.reply.wait(Chunks)
    assert stage.process
    stage.process.send_signal(signal.SIGTERM)
    assert await stage.exit_status() == 0
    assert not crashes(stage)


async def test_a_killed_worker_leaves_its_crash_on_record(stage: Stage) -> None:
    await stage.start_worker()
    assert stage.process
    stage.process.kill()
    await stage.exit_status()
    assert crashes(stage)


async def test_another_scheduler_is_told_everything(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    stage.tell(SchedulerHeartbeat(stage.boot_id))
    await stage.load(reciter)
    request, attempt = stage.ask(endless(), prefix=[b"model", b"system", b"question"])
    await stage.reply.wait(Chunks)
    stage.tell(SchedulerHeartbeat("c" * 16))
    hello = await stage.inbox.wait(Hello)
    assert hello.prefixes == [b"model", b"system", b"question"]
    assert hello.phase is WorkerPhase.READY
    assert hello.model.digest == DIGEST
    (report,) = hello.requests
    assert (report.request, report.attempt) == (request, attempt)
    assert (report.frontend, report.worker) == (stage.frontend_id, stage.worker)

    stage.tell(WhoAreYou("c" * 16))
    await stage.inbox.wait(Hello)
    first = await stage.inbox.wait(PeerHeartbeat, lambda m: m.in_flight == 1)
    assert first.steps > 0


async def test_a_refused_worker_leaves_with_an_error(stage: Stage) -> None:
    await stage.start_worker()
    stage.tell(Refused(Failure(Code.INVALID_REQUEST, "another version")))
    assert await stage.exit_status() == 1


async def test_a_bad_name_or_setting_is_one_line_and_status_1(tmp_path: Path) -> None:
    for arguments, changes in (
        (["--name", "../x"], {}),
        (["--name", "w-0"], {"PRONK_LOG_LEVEL": "loud"}),
    ):
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "pronk.workers", "worker", *arguments],
            env={**os.environ, "PRONK_STATE": str(tmp_path), **changes},
            stderr=asyncio.subprocess.PIPE,
        )
        _, stderr = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert process.returncode == 1
        assert len(stderr.decode().splitlines()) == 1


async def test_an_encoder_answers_with_vectors_and_refuses_to_write(
    stage: Stage, tmp_path: Path
) -> None:
    write_encoder(tmp_path / "encoder.gguf")
    await stage.start_worker()
    loaded = await stage.load(tmp_path / "encoder.gguf")
    assert loaded.model.context_length == ENCODER_CONTEXT
    request = stage.ask_vectors(EmbedBody(["the sky", "blue"]))
    assert (await stage.reply.wait(Started)).request == request
    embedded = await stage.reply.wait(Embedded)
    assert embedded == Embedded(request, 1, 2, DIMENSION, prompt_eval_count=7)
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FINISHED

    stage.ask(chat())
    failed = await stage.reply.wait(Failed)
    assert failed.failure.code is Code.INVALID_REQUEST
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FAILED

    stage.ask_vectors(chat())
    assert (await stage.reply.wait(Failed)).failure.code is Code.INTERNAL
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FAILED


async def test_a_cancelled_list_is_released_and_not_answered(stage: Stage, tmp_path: Path) -> None:
    write_encoder(tmp_path / "encoder.gguf", layers=12)
    await stage.start_worker()
    await stage.load(tmp_path / "encoder.gguf")
    request = stage.ask_vectors(EmbedBody(["the sky is blue " * 15] * 20_000))
    await stage.reply.wait(Started)
    stage.tell(Cancel(request, 1))
    released = await stage.inbox.wait(Released)
    assert (released.request, released.outcome) == (request, Outcome.CANCELLED)
    assert stage.reply.messages == []
    following = stage.ask_vectors(EmbedBody(["the sky"]))
    assert (await stage.reply.wait(Embedded)).request == following
