"""A real worker process with a model that has more than weights."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.fleet import WorkerPhase
from pronk.protocol.messages.generation import (
    ChatMessage,
    FinishReason,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelPart, PartKind
from pronk.protocol.messages.placement import Loaded, LoadFailed, Released
from support.adapters import write_adapter
from support.models import CHATML, write_reciting_model
from support.worker_stage import Stage, staged

CHAIN = "abcdéfghij"


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


@pytest.fixture
def reciter(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    write_reciting_model(path, [CHAIN])
    return path


def part(root: Path, kind: PartKind, content: str) -> ModelPart:
    path = root / kind
    path.write_text(content)
    return ModelPart(kind, str(path), "0" * 64, path.stat().st_size)


GO = (
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n"
)


@pytest.mark.parametrize("template", [CHATML, GO], ids=["jinja", "go"])
async def test_all_of_a_modelfile_takes_effect(
    stage: Stage, reciter: Path, tmp_path: Path, template: str
) -> None:
    adapter = write_adapter(tmp_path / "adapter.gguf", reciter, strength=0)
    examples = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "p"}]
    parts = [
        part(tmp_path, PartKind.SYSTEM, "Be kind."),
        part(tmp_path, PartKind.MESSAGES, json.dumps(examples)),
        part(tmp_path, PartKind.TEMPLATE, "<|im_start|>" + template),
        ModelPart(PartKind.ADAPTER, str(adapter), "0" * 64, adapter.stat().st_size),
    ]
    await stage.start_worker()
    loaded = await stage.load(reciter, parts=parts, parameters={"stop": ["h"]})
    assert isinstance(loaded, Loaded)
    body = GenerateBody(
        Kind.CHAT,
        SamplingOptions(temperature=0.0),
        messages=[ChatMessage("user", "hello")],
        return_context=True,
    )
    stage.ask(body)
    tokens, text, chatted = await stage.answer()
    await stage.inbox.wait(Released)
    assert (text, chatted.reason) == ("abcdéfg", FinishReason.STOP)
    turns = [("system", "Be kind."), ("user", "q"), ("assistant", "p"), ("user", "hello")]
    written = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    prompt = f"<|im_start|>{written}<|im_start|>assistant\n"
    raw = GenerateBody(
        Kind.COMPLETION,
        SamplingOptions(temperature=0.0),
        prompt=prompt,
        raw=True,
        return_context=True,
    )
    stage.ask(raw)
    again, _, completed = await stage.answer()
    assert (again, completed.context) == (tokens, chatted.context)


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        (PartKind.MESSAGES, '[{"role": "robot"}]', "its MESSAGE 1 needs a role"),
        (PartKind.ADAPTER, "no adapter", "its adapter is not a valid GGUF file"),
    ],
)
async def test_a_part_that_is_none_fails_to_load_with_a_reason(
    stage: Stage, reciter: Path, tmp_path: Path, kind: PartKind, content: str, reason: str
) -> None:
    await stage.start_worker()
    failed = await stage.load(reciter, parts=[part(tmp_path, kind, content)])
    assert isinstance(failed, LoadFailed)
    assert failed.failure.code is Code.LOAD_FAILED
    assert failed.failure.message.startswith(f"reciter:latest could not be loaded: {reason}")
    assert str(tmp_path) not in failed.failure.message
    assert await stage.exit_status() == 0
    # The next one in its place begins with nothing.
    assert (await stage.start_worker()).phase is WorkerPhase.BLANK
