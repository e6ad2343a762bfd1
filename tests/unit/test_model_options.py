"""What a model's Modelfile and file say counts where a request says nothing, and never harms."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.codec import decode, encode
from pronk.protocol.messages.generation import GenerateBody, Kind, SamplingOptions
from pronk.protocol.messages.library import ModelDescribed, ModelDetails, ModelFacts
from pronk.workers.inference.defaults import METADATA, merged, model_options, model_seed
from pronk.workers.inference.sampling import plan_sampling
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.modelfile import worker_parameters
from support.store import PHI, Ollama, describe, resolve

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
)
ANY = SCALARS | st.lists(SCALARS, max_size=5)
NAMES = st.sampled_from(
    [*SamplingOptions.__dataclass_fields__, "num_ctx", "no_such_thing"]
) | st.text(max_size=9)


def test_the_order_is_request_modelfile_file_default() -> None:
    model = model_options(
        {"temperature": 0.5, "top_k": 7}, {"general.sampling.temp": "0.3", **_file("min_p", "0.1")}
    )
    options = merged(SamplingOptions(temperature=1.5), model)
    assert (options.temperature, options.top_k, options.min_p, options.top_p) == (1.5, 7, 0.1, None)
    assert merged(SamplingOptions(), model).temperature == 0.5
    assert plan_sampling(options, 512).top_p == 0.9


def _file(name: str, value: str) -> dict[str, str]:
    (key,) = [key for key, option in METADATA.items() if option == name]
    return {key: value}


def test_a_requests_stops_replace_the_models() -> None:
    model = model_options({"stop": ["<|im_end|>", "</s>"]}, {})
    assert merged(SamplingOptions(), model).stop == ["<|im_end|>", "</s>"]
    assert merged(SamplingOptions(stop=["x"]), model).stop == ["x"]
    assert merged(SamplingOptions(stop=[]), model).stop == []
    assert model_options({"stop": "one"}, {}).stop == ["one"]


@pytest.mark.parametrize("name", sorted(METADATA))
def test_each_recommendation_of_a_file_is_read(name: str) -> None:
    assert getattr(model_options({}, {name: "1"}), METADATA[name]) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("temperature", 10**400),
        ("temperature", True),
        ("top_k", 1.5),
        ("top_k", [40]),
        ("num_predict", 2**70),
        ("stop", [1]),
        ("stop", ["x" * 1000] * 100),
        ("dry_sequence_breakers", ["x" * 1000]),
        ("ignore_eos", "yes"),
        ("logit_bias", {"1": 2}),
        ("no_such_thing", 1),
    ],
)
def test_what_means_nothing_is_ignored_with_a_line(
    name: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = model_options({name: value, "top_p": 0.4}, {})
    assert model == SamplingOptions(top_p=0.4)
    assert name in caplog.text
    assert len(caplog.records) == 1


def test_parameters_of_loading_are_no_options_and_no_mistakes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        loading = {"num_ctx": 4096, "num_batch": 64, "num_thread": 2, "num_parallel": 4}
        assert model_options({**loading, "num_gpu": 99}, {}) == SamplingOptions()
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "seed"),
    [
        (42, 42),
        (42.0, 42),
        ("42", 42),
        (0, 0),
        (2**63 + 7, 7),
        (-1, None),
        (None, None),
        ("x", None),
        (1.5, None),
        (True, None),
        ([1], None),
        (1e400, None),
    ],
)
def test_a_modelfile_may_set_a_seed(value: object, seed: int | None) -> None:
    assert model_seed({"seed": value}) == seed
    assert model_seed({}) is None


@settings(deadline=None)
@given(
    st.dictionaries(NAMES, ANY, max_size=8),
    st.dictionaries(st.sampled_from(sorted(METADATA)), st.text(max_size=9)),
)
def test_any_modelfile_and_any_file_make_options_that_can_be_used(
    parameters: dict[str, object], metadata: dict[str, str]
) -> None:
    options = merged(SamplingOptions(), model_options(parameters, metadata))
    plan_sampling(options, 512)
    model_seed(parameters)
    body = GenerateBody(Kind.CHAT, options)
    assert decode(encode(body)) == body


# --- in the store


def test_the_store_tells_what_a_modelfile_sets(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    parameters = {"num_ctx": 4096, "stop": ["<|im_end|>"], "temperature": 0.7, "numa": None}
    ollama.add(PHI, weights, ollama.layer("params", json.dumps(parameters)))
    facts = describe(catalog, resolve(catalog, "phi").digest)
    assert facts.parameters == {"num_ctx": 4096, "stop": ["<|im_end|>"], "temperature": 0.7}


@pytest.mark.parametrize("text", ["[]", "{", '"x"', ""])
def test_parameters_that_cannot_be_read_do_not_keep_a_model_from_running(
    text: str, ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights, ollama.layer("params", text))
    assert describe(catalog, resolve(catalog, "phi").digest).parameters == {}


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=80), ANY | st.dictionaries(st.text(), ANY, max_size=2)))
def test_any_parameters_travel(given_: dict[str, object]) -> None:
    text = json.dumps(given_, allow_nan=False) if _is_json(given_) else "{}"
    details = ModelDetails("", "gguf", "llama", ["llama"], "2K", "F16")
    facts = ModelFacts("m:latest", "d" * 64, "/m", 1, 1, details, worker_parameters(text))
    message = ModelDescribed("a" * 32, facts)
    assert decode(encode(message)) == message


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def test_parameters_are_bounded() -> None:
    many = {f"option{number}": number for number in range(1000)}
    assert len(worker_parameters(json.dumps(many))) < 200
    long = {"stop": ["x" * 10_000] * 100, "other": list(range(100_000)), "top_k": 4}
    assert worker_parameters(json.dumps(long)) == {"top_k": 4}
