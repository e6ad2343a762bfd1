"""The store tells of all that belongs to a model beside its weights."""

from __future__ import annotations

import json

import pytest

from pronk.protocol.codec import decode, encode
from pronk.protocol.errors import Code
from pronk.protocol.messages.library import DescribeModel, ModelDescribed, ModelPart, PartKind
from pronk.workers.store.catalog import Catalog
from support.gguf_files import gguf_bytes, tensor
from support.store import CALL, CONFIG, PHI, Ollama, describe, refusal, resolve


def parts(catalog: Catalog) -> list[ModelPart]:
    return describe(catalog, resolve(catalog, "phi").digest).parts


def test_parts_are_told_with_their_places_and_sizes(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    kinds = ("adapter", "projector", "template", "system", "messages", "params", "license")
    contents = {kind: f"the {kind}".encode() for kind in kinds} | {"projector": gguf_bytes()}
    layers = {kind: ollama.layer(kind, content) for kind, content in contents.items()}
    ollama.add(PHI, weights, *layers.values())
    assert parts(catalog) == [
        ModelPart(
            PartKind(kind),
            str(ollama.path_of(layers[kind]["digest"])),
            layers[kind]["digest"].removeprefix("sha256:"),
            len(contents[kind]),
        )
        for kind in ("adapter", "projector", "template", "system", "messages")
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no GGUF", "does not begin with 'GGUF'"),
        (gguf_bytes(tensor(offset=1 << 20), data=128), "behind the end of the file"),
        (gguf_bytes(tensor(shape=(0,)), data=128), "dimension"),
    ],
)
def test_a_projector_that_its_loader_would_read_beyond_keeps_the_model_from_being_loaded(
    ollama: Ollama, catalog: Catalog, weights: bytes, content: bytes, reason: str
) -> None:
    ollama.add(PHI, weights, ollama.layer("projector", content))
    error = refusal(catalog, DescribeModel(CALL, resolve(catalog, "phi").digest))
    assert error.code is Code.LOAD_FAILED
    assert "its projector is not a valid GGUF" in error.message
    assert reason in error.message


def test_a_model_may_have_none(ollama: Ollama, catalog: Catalog, weights: bytes) -> None:
    ollama.add(PHI, weights, ollama.layer("license", "MIT"))
    assert parts(catalog) == []


def test_all_adapters_count_and_of_texts_the_last(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    layers = [
        ollama.layer(kind, text)
        for kind, text in (
            ("system", "old"),
            ("adapter", "one"),
            ("adapter", "one"),
            ("system", "new"),
            ("adapter", "two"),
        )
    ]
    ollama.add(PHI, weights, *layers)
    expected = [layers[place]["digest"] for place in (1, 2, 3, 4)]
    assert [f"sha256:{part.blob}" for part in parts(catalog)] == expected


def test_adapters_count_in_the_models_size(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights, ollama.layer("adapter", bytes(5000)))
    facts = describe(catalog, resolve(catalog, "phi").digest)
    assert facts.size == len(weights) + 5000 + len(json.dumps(CONFIG))


@pytest.mark.parametrize("kind", ["adapter", "system"])
def test_a_part_that_is_missing_is_said_to_be(
    ollama: Ollama, catalog: Catalog, weights: bytes, kind: str
) -> None:
    layer = ollama.layer(kind, "gone")
    ollama.add(PHI, weights, layer)
    digest = resolve(catalog, "phi").digest
    ollama.path_of(layer["digest"]).unlink()
    error = refusal(catalog, DescribeModel(CALL, digest))
    assert error.code is Code.LOAD_FAILED
    assert f"its {kind} is missing" in error.message


def test_a_part_that_lies_elsewhere_is_refused(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    layer = ollama.layer("system", "mine")
    ollama.add(PHI, weights, layer)
    secret = ollama.root.parent / "secret"
    secret.write_text("not for everybody")
    place = ollama.path_of(layer["digest"])
    place.unlink()
    place.symlink_to(secret)
    error = refusal(catalog, DescribeModel(CALL, resolve(catalog, "phi").digest))
    assert "a link that leads out of the library" in error.message
    assert str(secret) not in error.message


def test_no_answer_is_too_long_to_be_sent(ollama: Ollama, catalog: Catalog, weights: bytes) -> None:
    layer = ollama.layer("adapter", "x")
    ollama.add(PHI, weights, *[layer] * 256)
    facts = describe(catalog, resolve(catalog, "phi").digest)
    assert len(facts.parts) == 256
    message = ModelDescribed(CALL, facts)
    assert decode(encode(message)) == message
    ollama.add(PHI, weights, *[layer] * 257)
    error = refusal(catalog, DescribeModel(CALL, resolve(catalog, "phi").digest))
    assert "more than 256 adapters" in error.message


def test_what_ollama_calls_its_renderer_is_told(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights, config={**CONFIG, "renderer": "qwen3-coder", "parser": "qwen3-coder"})
    assert describe(catalog, resolve(catalog, "phi").digest).renderer == "qwen3-coder"
    ollama.add(PHI, weights, config={**CONFIG, "renderer": 7})
    assert describe(catalog, resolve(catalog, "phi").digest).renderer == ""
