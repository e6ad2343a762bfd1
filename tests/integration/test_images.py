"""Images in requests to a real server."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import httpx

from support.images import picture
from support.library import add_model
from support.server import PATIENCE, ServerMaker
from support.vision_models import write_vision_model

COUNT = 800


def test_a_model_with_a_projector_is_shown_images(make_server: ServerMaker) -> None:
    server = make_server(start=False)
    model = write_vision_model(server.root)
    add_model(server.models, "seeing", model.weights, projector=model.projector)
    server.start()

    def ask(path: str, **fields: Any) -> httpx.Response:
        body = {"model": "seeing", "stream": False, **fields}
        return httpx.post(f"{server.url}/api/{path}", json=body, timeout=PATIENCE)

    one, other = (b64encode(picture(seed)).decode() for seed in (1, 2))
    assert ask("show").json()["capabilities"] == ["completion", "vision"]

    # A stream about an image outlives its worker: the next one looks at the image, too.
    options = {"temperature": 0, "num_predict": COUNT}
    message = {"role": "user", "content": "What is this?", "images": [one]}
    question = {"model": "seeing", "messages": [message], "options": options}
    url = f"{server.url}/api/chat"

    def killed() -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        with httpx.stream("POST", url, json=question, timeout=PATIENCE) as answer:
            for line in answer.iter_lines():
                if not lines:
                    server.worker_with_model().kill()
                lines.append(json.loads(line))
        return lines

    lines = server.interrupted(killed)
    assert (lines[-1]["done"], lines[-1]["eval_count"]) == (True, COUNT)

    short = {"temperature": 0, "num_predict": 20}
    said = [
        ask("generate", prompt="?", images=images, options=short).json()["response"]
        for images in ([one], [other], [one, other], [one])
    ]
    assert len(set(said)) == 3
    assert said[0] == said[3]

    broken = ask("generate", prompt="?", images=[b64encode(b"no image").decode()])
    assert broken.status_code == 400
    assert broken.json()["error"].startswith("images: it is none of JPEG, PNG")
    blind = ask("generate", model="demo", prompt="?", images=[one])
    assert blind.status_code == 400
    assert blind.json()["error"] == '"demo" does not support vision'
