"""`/api/embed`, `/api/embeddings` and `/api/rerank`: what clients send, and what they get.

The first two are Ollama's. Ollama has no reranking: the third is in the shape that Jina, Cohere
and llama.cpp's server share.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import numpy as np
import orjson
from pydantic import BeforeValidator, Field

from ...operations.embedding import MAX_INPUTS, Embedding, EmbeddingRequest
from ...operations.offload import NO_WISH
from .options import Options
from .requests import KeepAlive, ModelRequest, Text, one_or_many


def _text_of(value: object) -> object:
    """A document may come as `{"text": …}`."""
    return value.get("text") if isinstance(value, dict) else value


class EmbedRequest(ModelRequest):
    """`POST /api/embed`."""

    input: Annotated[
        list[str],
        BeforeValidator(one_or_many),
        Field(max_length=MAX_INPUTS, default_factory=list[str]),
    ]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None

    def embedding(self) -> EmbeddingRequest:
        """The request as operations understand it."""
        return EmbeddingRequest(
            model=self.model,
            inputs=tuple(self.input),
            truncate=self.truncate is not False,
            dimensions=self.dimensions,
            context_length=self.options.context_length if self.options else None,
            offload=self.options.offload if self.options else NO_WISH,
            keep_alive=self.keep_alive,
        )


class EmbeddingsRequest(ModelRequest):
    """`POST /api/embeddings`."""

    prompt: Text = ""
    options: Options | None = None
    keep_alive: KeepAlive = None

    def embedding(self) -> EmbeddingRequest:
        """The request as operations understand it."""
        return EmbeddingRequest(
            model=self.model,
            inputs=(self.prompt,) if self.prompt else (),
            normalize=False,
            context_length=self.options.context_length if self.options else None,
            offload=self.options.offload if self.options else NO_WISH,
            keep_alive=self.keep_alive,
        )


class RerankRequest(ModelRequest):
    """`POST /api/rerank`."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[Annotated[str, BeforeValidator(_text_of)]],
        Field(min_length=1, max_length=MAX_INPUTS),
    ]
    top_n: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    return_documents: bool | None = None
    truncate: bool | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None

    def embedding(self) -> EmbeddingRequest:
        """The request as operations understand it."""
        return EmbeddingRequest(
            model=self.model,
            inputs=tuple(self.documents),
            query=self.query,
            truncate=self.truncate is not False,
            normalize=False,
            context_length=self.options.context_length if self.options else None,
            offload=self.options.offload if self.options else NO_WISH,
            keep_alive=self.keep_alive,
        )


def embed(model: str, embedding: Embedding) -> bytes:
    """The answer of `/api/embed`; `model` is the name that the client sent."""
    accounts = {
        "total_duration": embedding.total_duration,
        "load_duration": embedding.load_duration,
        "prompt_eval_count": embedding.prompt_eval_count,
    }
    return b'{"model":%s,"embeddings":[%s],%s' % (
        orjson.dumps(model),
        b",".join(_rows(*block) for block in embedding.blocks),
        orjson.dumps(accounts)[1:],
    )


def embeddings(embedding: Embedding) -> bytes:
    """The answer of `/api/embeddings`."""
    return b'{"embedding":%s}' % (_rows(*embedding.blocks[0]) if embedding.blocks else b"[]")


def ranking(asked: RerankRequest, embedding: Embedding) -> bytes:
    """The answer of `/api/rerank`: the documents of the highest scores, the highest first."""
    scores = list(
        chain.from_iterable(_numbers(numbers).tolist() for _, numbers in embedding.blocks)
    )
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results: list[dict[str, object]] = []
    for index in order[: asked.top_n]:
        result: dict[str, object] = {"index": index, "relevance_score": scores[index]}
        if asked.return_documents:
            result["document"] = {"text": asked.documents[index]}
        results.append(result)
    tokens = embedding.prompt_eval_count
    return orjson.dumps(
        {
            "model": asked.model,
            "object": "list",
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


def _numbers(numbers: bytes) -> np.ndarray:
    return np.frombuffer(numbers, "<f4").astype(np.float32, copy=False)


def _rows(dimension: int, numbers: bytes) -> bytes:
    """Vectors as JSON arrays with commas between them."""
    rows = _numbers(numbers).reshape(-1, dimension)
    return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
