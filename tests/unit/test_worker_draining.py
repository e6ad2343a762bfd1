"""A real worker process that is told to drain finishes what it has, or hands it on, and leaves."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.fleet import (
    BeginDraining,
    Draining,
    Hello,
    SchedulerHeartbeat,
    WorkerPhase,
)
from pronk.protocol.messages.generation import (
    Chunks,
    Finished,
    GenerateBody,
    Kind,
    Lost,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded, Released, Unload
from support.worker_stage import (
    CHAIN,
    CONTEXT,
    DIGEST,
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


def begin_draining(how: str, stage: Stage, seconds: float | None = None) -> None:
    """Has the worker begin to drain, by a signal or by the scheduler's word."""
    assert stage.process
    if how == "signal":
        stage.process.send_signal(signal.SIGUSR1)
    else:
        stage.tell(BeginDraining(seconds))


@pytest.mark.parametrize("how", ["signal", "message"])
async def test_a_drained_worker_finishes_its_answer_and_exits(
    stage: Stage, reciter: Path, how: str
) -> None:
    await stage.start_worker()
    await stage.load(reciter, parallel=2)
    options = SamplingOptions(temperature=0, num_predict=1000)
    stage.ask(GenerateBody(Kind.COMPLETION, options, prompt="x", raw=True))
    await stage.reply.wait(Chunks)
    begin_draining(how, stage)
    finished = await stage.reply.wait((Finished, Lost))  # type: ignore[arg-type]
    assert isinstance(finished, Finished)
    assert finished.eval_count == 1000
    # The answer may have been shorter than the way of the word.
    both = [await stage.inbox.wait((Draining, Released)) for _ in range(2)]  # type: ignore[arg-type]
    assert {type(message) for message in both} == {Draining, Released}
    stage.tell(Unload("drained"))
    assert await stage.exit_status() == 0


async def test_what_a_worker_has_not_done_at_the_limit_goes_back_to_its_owner(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter, parallel=2)
    keys = {stage.ask(endless()), stage.ask(endless())}
    await stage.reply.wait(Chunks, lambda m: len(m.chunks) == 2)
    begin_draining("message", stage, 600.0)
    await stage.inbox.wait(Draining)
    begin_draining("message", stage, 0.0)  # told again, the limit is another one
    lost = [await stage.reply.wait(Lost) for _ in keys]
    assert {(message.request, message.attempt) for message in lost} == keys
    assert {message.failure.code for message in lost} == {Code.UNAVAILABLE}
    released = [await stage.inbox.wait(Released) for _ in keys]
    assert {(message.request, message.attempt) for message in released} == keys
    # Nothing follows, although the engine was in the middle of a step.
    assert not [m for _, m in stage.reply.messages if isinstance(m, Chunks)]
    late, _ = stage.ask(endless())
    assert (await stage.reply.wait(Lost)).request == late
    # No scheduler says that it may go: it goes.
    assert await stage.exit_status() == 0


async def test_a_request_that_crossed_the_word_of_draining_is_served(
    stage: Stage, reciter: Path
) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    begin_draining("signal", stage)
    await stage.inbox.wait(Draining)
    assert stage.process
    # Nor does it go because its time is over when it stood still: it hears what came meanwhile.
    stage.process.send_signal(signal.SIGSTOP)
    stage.ask(chat())
    await asyncio.sleep(1.2)
    stage.process.send_signal(signal.SIGCONT)
    tokens, text, end = await stage.answer()
    assert text == CHAIN
    assert isinstance(end, Finished)
    assert end.eval_count == len(tokens)
    await stage.inbox.wait(Released)
    stage.tell(Unload("drained"))
    assert await stage.exit_status() == 0


@pytest.mark.parametrize("phase", [WorkerPhase.BLANK, WorkerPhase.LOADING])
async def test_a_drained_worker_without_a_model_exits(
    stage: Stage, reciter: Path, phase: WorkerPhase
) -> None:
    await stage.start_worker()
    if phase is WorkerPhase.LOADING:
        details = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")
        facts = ModelFacts("reciter:latest", DIGEST, str(reciter), 1, CONTEXT, details)
        stage.tell(Load(facts, CONTEXT, threads=1))
    stage.tell(BeginDraining())
    await stage.inbox.wait(Draining)
    stage.tell(Unload("drained"))
    assert await stage.exit_status() == 0
    assert not [m for _, m in stage.inbox.messages if isinstance(m, Loaded)]


async def test_a_new_scheduler_hears_that_a_worker_drains(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    key = stage.ask(endless())
    await stage.reply.wait(Chunks)
    begin_draining("signal", stage)
    await stage.inbox.wait(Draining)
    stage.tell(SchedulerHeartbeat("a" * 16))
    stage.tell(SchedulerHeartbeat("c" * 16))
    hello = await stage.inbox.wait(Hello)
    assert (hello.name, hello.phase) == ("w-0", WorkerPhase.DRAINING)
    assert hello.model is not None
    assert [(run.request, run.attempt) for run in hello.requests] == [key]


async def test_sigterm_ends_a_draining_worker_at_once(stage: Stage, reciter: Path) -> None:
    await stage.start_worker()
    await stage.load(reciter)
    stage.ask(endless())
    await stage.reply.wait(Chunks)
    begin_draining("signal", stage)
    await stage.inbox.wait(Draining)
    assert stage.process
    stage.process.terminate()
    assert await stage.exit_status() == 0
    assert not [m for _, m in stage.reply.messages if isinstance(m, Finished)]
