"""Vectors and scores over HTTP: real processes, small encoders, and the demo model as a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gguf
import httpx
import numpy as np
import ollama
import pytest

from support.encoder_models import CONTEXT, DIMENSION, WORDS, write_encoder
from support.library import add_model
from support.server import PATIENCE, Server, servers, wait_for

pytestmark = pytest.mark.xdist_group("embeddings")  # one server for all of them

TEXTS = [" ".join(WORDS[(i * i + k) % 12] for k in range(1 + i % 7)) for i in range(150)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose library has an encoder, a reranker, and a model that computes no numbers."""
    with servers() as make:
        server = make(start=False, PRONK_WORKERS="3", PRONK_MAX_GENERATION_BODY="8MiB")
        for name, model in (
            ("encoder", {}),
            ("ranker", {"pooling": gguf.PoolingType.RANK, "seed": 1}),
            ("poisoned", {"poisoned_word": "mat", "seed": 2}),
        ):
            path = server.root / f"{name}.gguf"
            write_encoder(path, **model)
            add_model(server.models, name, path)
        server.start()
        yield server


def cosines(left: Any, right: Any) -> np.ndarray:
    a, b = np.array(left, np.float64), np.array(right, np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


@pytest.mark.parametrize("model", ["encoder", "demo"])
def test_a_long_list_has_the_vectors_of_its_texts_in_order(client: ollama.Client, model: str):
    answer = client.embed(model, TEXTS)
    assert len(answer.embeddings) == len(TEXTS)
    assert np.allclose(np.linalg.norm(answer.embeddings, axis=1), 1, atol=1e-5)
    picked = range(0, len(TEXTS), 13)
    alone = [client.embed(model, TEXTS[i]).embeddings[0] for i in picked]
    assert cosines([answer.embeddings[i] for i in picked], alone).min() > 0.9999


def test_the_answer_has_ollamas_fields(http: httpx.Client):
    answer = http.post("/api/embed", json={"model": "encoder", "input": ["the sky", "blue"]})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    body = answer.json()
    assert list(body) == [
        *("model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"),
    ]
    assert body["model"] == "encoder"
    assert body["prompt_eval_count"] == 4 + 3  # [CLS] the sky [SEP], [CLS] blue [SEP]
    assert 0 <= body["load_duration"] <= body["total_duration"]
    assert np.array(body["embeddings"]).shape == (2, DIMENSION)


def test_dimensions_cut_the_vector_and_its_length_is_1_again(client: ollama.Client):
    whole = np.array(client.embed("encoder", "the sky").embeddings[0])
    cut = np.array(client.embed("encoder", "the sky", dimensions=8).embeddings[0])
    assert len(cut) == 8
    assert np.allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)


def test_a_text_beyond_the_context_is_cut_or_refused(client: ollama.Client, http: httpx.Client):
    answer = client.embed("encoder", "sky " * 1000)
    assert answer.prompt_eval_count == CONTEXT
    assert client.embed("encoder", "sky " * 1000, options={"num_ctx": 16}).prompt_eval_count == 16
    request = {"model": "encoder", "input": ["sea", "sky " * 1000], "truncate": False}
    assert "input[1]" in error_of(http.post("/api/embed", json=request), 400)
    assert "truncate" in error_of(http.post("/api/embed", json=request), 400)


def test_the_older_path_returns_one_vector_as_the_model_computes_it(
    client: ollama.Client, http: httpx.Client
):
    old = client.embeddings("encoder", "the sky is blue").embedding
    new = client.embed("encoder", "the sky is blue").embeddings[0]
    assert abs(np.linalg.norm(old) - 1) > 0.01
    assert cosines(old, new) > 0.99999
    empty = http.post("/api/embeddings", json={"model": "encoder", "prompt": ""})
    assert (empty.status_code, empty.json()) == (200, {"embedding": []})


@pytest.mark.parametrize("fields", [{}, {"input": ""}, {"input": []}, {"input": None}])
def test_a_request_without_texts_loads_the_model(
    server: Server, http: httpx.Client, fields: dict[str, Any]
):
    answer = http.post("/api/embed", json={"model": "encoder", "keep_alive": "10m"} | fields)
    assert (answer.status_code, answer.json()["embeddings"]) == (200, [])
    assert "encoder:latest" in [model["name"] for model in server.loaded()]


def test_keep_alive_ends_the_models_stay(server: Server, http: httpx.Client):
    answer = http.post("/api/embed", json={"model": "encoder", "input": "sky", "keep_alive": 0})
    assert len(answer.json()["embeddings"]) == 1
    wait_for(
        lambda: "encoder:latest" not in [model["name"] for model in server.loaded()],
        "the model is unloaded",
    )


def test_reranking_orders_documents(http: httpx.Client):
    documents = ["the sea is deep", {"text": "the sky is blue"}, "a cat", "why", "the sky is blue"]
    request = {"model": "ranker", "query": "why is the sky blue", "documents": documents}
    answer = http.post("/api/rerank", json=request).json()
    results = answer["results"]
    assert answer["model"] == "ranker"
    assert sorted(result["index"] for result in results) == [0, 1, 2, 3, 4]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    by_index = {result["index"]: result["relevance_score"] for result in results}
    assert abs(by_index[1] - by_index[4]) < 1e-5
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 40
    best = http.post("/api/rerank", json=request | {"top_n": 2, "return_documents": True}).json()
    assert [result["index"] for result in best["results"]] == [r["index"] for r in results[:2]]
    texts = [document["text"] if isinstance(document, dict) else document for document in documents]
    assert all(r["document"] == {"text": texts[r["index"]]} for r in best["results"])


@pytest.mark.parametrize(
    ("path", "request_", "word"),
    [
        ("embed", {"input": "sky"}, "model"),
        ("embed", {"model": "encoder", "input": 5}, "input"),
        ("embed", {"model": "encoder", "input": {"text": "sky"}}, "input"),
        ("embed", {"model": "encoder", "input": ["sky", 5]}, "input[1]"),
        ("embed", {"model": "encoder", "input": ["sky", ["sea"]]}, "input[1]"),
        ("embed", {"model": "encoder", "input": ["sky", None]}, "input[1]"),
        ("embed", {"model": "encoder", "input": ["sky"] * 100_000}, "input"),
        ("embed", {"model": "encoder", "input": "sky", "dimensions": -1}, "dimensions"),
        ("embed", {"model": "encoder", "input": "sky", "dimensions": "all"}, "dimensions"),
        ("embed", {"model": "encoder", "input": "sky", "truncate": "no"}, "truncate"),
        ("embed", {"model": "encoder", "input": "sky", "options": {"num_ctx": "x"}}, "num_ctx"),
        ("embed", {"model": "encoder", "input": "sky", "keep_alive": "soon"}, "keep_alive"),
        ("embed", {"model": "demo", "input": ["sky", ""]}, "input[1]"),
        ("embed", {"model": "ranker", "input": "sky"}, "/api/rerank"),
        ("embeddings", {"model": "encoder", "prompt": ["sky"]}, "prompt"),
        ("rerank", {"model": "ranker", "documents": ["sky"]}, "query"),
        ("rerank", {"model": "ranker", "query": "sky"}, "documents"),
        ("rerank", {"model": "ranker", "query": "", "documents": ["sky"]}, "query"),
        ("rerank", {"model": "ranker", "query": "sky", "documents": []}, "documents"),
        ("rerank", {"model": "ranker", "query": "sky", "documents": [{}]}, "documents[0]"),
        ("rerank", {"model": "ranker", "query": "sky", "documents": ["a"] * 100_000}, "documents"),
        ("rerank", {"model": "ranker", "query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("rerank", {"model": "ranker", "query": "sky " * 99, "documents": ["sky"]}, "query"),
        ("rerank", {"model": "encoder", "query": "sky", "documents": ["sea"]}, "cannot rank"),
        ("generate", {"model": "encoder", "prompt": "sky"}, "does not support"),
    ],
)
def test_a_mistake_is_named(http: httpx.Client, path: str, request_: dict[str, Any], word: str):
    assert word in error_of(http.post(f"/api/{path}", json=request_), 400)


def test_an_unknown_model_is_404(http: httpx.Client):
    for path, fields in (
        ("embed", {"input": "sky"}),
        ("embeddings", {"prompt": "sky"}),
        ("rerank", {"query": "sky", "documents": ["sea"]}),
    ):
        answer = http.post(f"/api/{path}", json={"model": "nobody"} | fields)
        assert "nobody" in error_of(answer, 404)


def test_strange_text_is_text_and_what_is_not_quite_text_is_mended(http: httpx.Client):
    strange = ["\0", "a\0b", "�", "\U0010ffff", "", " \n\t", "x" * 100_000, "[SEP] [CLS]"]
    answer = http.post("/api/embed", json={"model": "encoder", "input": strange})
    assert np.isfinite(np.array(answer.json()["embeddings"])).all()
    surrogate = b'{"model":"encoder","input":["sky","\\ud800"]}'
    mended = http.post("/api/embed", json={"model": "encoder", "input": ["sky", "\ufffd"]}).json()
    answer = http.post("/api/embed", content=surrogate).json()
    assert answer["embeddings"] == mended["embeddings"]


def test_the_largest_list_is_answered(http: httpx.Client):
    request = {"model": "encoder", "input": ["sky", "the sea"] * 2048}
    vectors = http.post("/api/embed", json=request).json()["embeddings"]
    assert len(vectors) == 4096
    assert cosines(vectors[0], vectors[4094]) > 0.9999
    assert cosines(vectors[1], vectors[4095]) > 0.9999
    request["input"].append("one too many")
    assert "4096" in error_of(http.post("/api/embed", json=request), 400)


def test_no_numbers_are_an_error_and_the_model_goes_on(http: httpx.Client):
    request = {"model": "poisoned", "input": ["the sky", "the mat"]}
    error_of(http.post("/api/embed", json=request), 500)
    answer = http.post("/api/embed", json={"model": "poisoned", "input": ["the sky"]})
    assert np.isfinite(np.array(answer.json()["embeddings"])).all()


def test_bad_requests_disturb_no_text_that_is_generated_beside_them(
    server: Server, http: httpx.Client
):
    question = {
        "model": "demo",
        "prompt": "Why is the sky blue?",
        "stream": False,
        "options": {"temperature": 0},
    }
    expected = http.post("/api/generate", json=question).json()["response"]
    bad = [
        {"model": "demo", "input": ["sky"] * 100_000},
        {"model": "demo", "input": [""] * 100},
        {"model": "demo", "input": ["sky " * 100_000] * 3, "truncate": False},
        {"model": "demo", "input": TEXTS},
    ]
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(httpx.post, f"{server.url}/api/embed", json=request, timeout=PATIENCE)
            for request in bad
        ]
        assert http.post("/api/generate", json=question).json()["response"] == expected
        assert [one.result().status_code for one in asked] == [400, 400, 400, 200]


def test_the_library_says_that_an_encoder_embeds(client: ollama.Client):
    assert client.show("encoder").capabilities == ["embedding"]


def test_a_worker_that_dies_over_a_list_is_not_noticed(server: Server, http: httpx.Client):
    http.post("/api/embed", json={"model": "encoder", "keep_alive": "10m"})
    (holder,) = [worker for worker in [server.worker_with_model()] if worker]
    request = {"model": "encoder", "input": ["the sky is blue " * 10] * 1000}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(http.post, "/api/embed", json=request)
        holder.kill()
        answer = asked.result()
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["embeddings"]) == 1000
