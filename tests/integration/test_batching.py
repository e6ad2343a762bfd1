"""Many requests at the same time: each is answered as if it were alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import ollama
import pytest

from support.server import PATIENCE, Server

pytestmark = pytest.mark.xdist_group("batching")  # one server for all of them

SLOTS = 8
QUESTIONS = (
    "Why is the sky blue?",
    "What is the capital of Japan?",
    "List the planets.",
    "Count to ten.",
    "What is Pronk?",
    "Give me a person as JSON.",
    "hi",
    "Who wrote Pride and Prejudice?",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("batching"), PRONK_NUM_PARALLEL=str(SLOTS))
    server.start()
    yield server
    server.stop()


def client(server: Server) -> ollama.AsyncClient:
    return ollama.AsyncClient(f"http://127.0.0.1:{server.port}")


async def ask(server: Server, *said: str) -> str:
    """The demo model's greedy answer to the last of the user's turns, which are `said`."""
    messages = [{"role": "user", "content": text} for text in said]
    answer = await client(server).chat("demo", messages, options={"temperature": 0})
    return answer.message.content or ""


async def test_every_answer_is_the_one_it_would_be_alone(server: Server) -> None:
    alone = [await ask(server, question) for question in QUESTIONS]
    together = await asyncio.gather(*(ask(server, question) for question in QUESTIONS * 4))
    assert together == alone * 4


async def test_streams_advance_side_by_side(server: Server) -> None:
    """None of as many streams as there are slots waits for the end of another."""
    begun = asyncio.Barrier(SLOTS)

    async def stream() -> None:
        options = {"ignore_eos": True, "num_predict": 20_000, "temperature": 0}
        answer = await client(server).generate("demo", "hi", stream=True, options=options)
        async for _ in answer:
            async with asyncio.timeout(60):
                await begun.wait()
            return

    await asyncio.gather(*(stream() for _ in range(SLOTS)))


async def test_nothing_of_one_request_reaches_another(server: Server) -> None:
    fresh = await ask(server, "What is my name?")
    for _ in range(3):
        answer = await ask(server, "My name is Zebulon.", "What is my name?")
        assert answer
        assert await ask(server, "What is my name?") == fresh
        assert "Zebulon" not in await ask(server, "What is my name?")


async def test_a_client_that_leaves_frees_its_slot_for_who_waits(server: Server) -> None:
    begun: asyncio.Queue[asyncio.Task[None] | None] = asyncio.Queue()

    async def endless() -> None:
        options = {"ignore_eos": True, "num_predict": 1_000_000}
        first = True
        async for _ in await client(server).generate("demo", "hi", stream=True, options=options):
            if first:
                begun.put_nowait(asyncio.current_task())
            first = False

    streams = [asyncio.create_task(endless()) for _ in range(SLOTS + 2)]
    async with asyncio.timeout(PATIENCE):
        running = [await begun.get() for _ in range(SLOTS)]
    assert begun.empty(), "the others wait"
    for stream in running[:4]:
        assert stream
        stream.cancel()
    assert "Tokyo" in await ask(server, "What is the capital of Japan?")
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
