"""Models of a library whose Modelfiles say more than FROM, on a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx

from pronk.workers.store.demo import WEIGHTS
from support.adapters import write_adapter, write_reciting_adapter
from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, ServerMaker

COUNT = 2500
SYSTEM = "You answer in one short sentence."
EXAMPLES = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello!"}]
QUESTION = {"role": "user", "content": "Why is the sky blue?"}


def test_what_a_modelfile_sets_takes_effect(make_server: ServerMaker) -> None:
    server = make_server(start=False)
    reciter = server.root / "m.gguf"
    write_reciting_model(reciter, ["01234567890"], context=8192)
    backwards = write_reciting_adapter(server.root / "back.gguf", reciter, "09876543210")
    foreign = write_adapter(server.root / "foreign.gguf", reciter, architecture="bert")
    for name, adapter in (("backwards", backwards), ("broken", foreign)):
        add_model(server.models, name, reciter, system=SYSTEM, adapter=adapter)
    add_model(
        server.models,
        "kind",
        WEIGHTS,
        {"seed": 7, "temperature": 1.0, "num_predict": 20},
        system=SYSTEM,
        messages=json.dumps(EXAMPLES),
    )
    server.start()

    def ask(path: str, **fields: Any) -> httpx.Response:
        body = {"stream": False, **fields}
        return httpx.post(f"{server.url}/api/{path}", json=body, timeout=PATIENCE)

    # A stream of a model with an adapter outlives its worker, and goes on with the adapter.
    question = {
        "model": "backwards",
        "prompt": "go",
        "options": {"temperature": 0, "num_ctx": 8192, "num_predict": COUNT},
    }
    url = f"{server.url}/api/generate"

    def killed() -> str:
        text = ""
        with httpx.stream("POST", url, json=question, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                if not text:
                    server.worker_with_model().kill()
                text += json.loads(line)["response"]
        return text

    assert server.interrupted(killed) == "0987654321" * (COUNT // 10)

    # What cannot be applied is said, and takes nothing with it.
    refused = ask("generate", model="broken", prompt="go")
    assert refused.status_code == 500
    assert "model arch and LoRA arch mismatch" in refused.json()["error"]
    assert str(server.root) not in refused.text

    # The model's own words are read as if the client had sent them.
    said = ask("chat", model="kind", messages=[QUESTION]).json()
    options = {"seed": 7, "temperature": 1.0, "num_predict": 20}
    system = {"role": "system", "content": SYSTEM}
    meant = ask("chat", model="demo", messages=[system, *EXAMPLES, QUESTION], options=options)
    assert said["message"]["content"]
    for key in ("message", "prompt_eval_count", "eval_count"):
        assert said[key] == meant.json()[key]
    prompted = ask("generate", model="kind", prompt=QUESTION["content"]).json()
    assert prompted["prompt_eval_count"] == said["prompt_eval_count"]
