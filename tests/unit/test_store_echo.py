"""The model without a file, as the library has it."""

from __future__ import annotations

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.library import DescribeModel, ResolveModel
from pronk.workers.echo import PACE
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.layout import Library
from support.store import CALL, Ollama, describe, names, refusal, resolve, show


@pytest.fixture
def echoing(ollama: Ollama) -> Catalog:
    return Catalog(Library(ollama.root), None, echo=True)


def test_it_is_there_only_where_it_was_switched_on(catalog: Catalog, echoing: Catalog) -> None:
    assert names(echoing) == ["echo:latest"]
    assert names(catalog) == []
    assert refusal(catalog, ResolveModel(CALL, "echo")).code is Code.NOT_FOUND
    digest = resolve(echoing, "echo").digest
    assert refusal(catalog, DescribeModel(CALL, digest)).code is Code.NOT_FOUND


def test_it_completes_and_does_nothing_else(echoing: Catalog) -> None:
    resolved = resolve(echoing, "ECHO")
    assert (resolved.name, resolved.capabilities) == ("echo:latest", ["completion"])
    shown = show(echoing, "echo:50")
    assert shown.capabilities == ["completion"]
    assert (shown.details.family, shown.modelfile.splitlines()[-1]) == ("echo", "FROM echo:50")


@pytest.mark.parametrize(("name", "pace"), [("echo", 0), ("echo:1", 1), ("echo:999999", 999_999)])
def test_its_digest_alone_tells_its_pace_in_any_process(
    ollama: Ollama, echoing: Catalog, name: str, pace: int
) -> None:
    resolved = resolve(echoing, name)
    facts = describe(Catalog(Library(ollama.root), None, echo=True), resolved.digest)
    assert facts.parameters == {PACE: pace}
    assert (facts.name, facts.digest) == (resolved.name, resolved.digest)
    assert (facts.weights, facts.size) == ("", 0)


@pytest.mark.parametrize("name", ["echo:0", "echo:050", "echo:1000000", "echo:fast", "eva/echo"])
def test_what_is_no_pace_is_no_model(echoing: Catalog, name: str) -> None:
    assert refusal(echoing, ResolveModel(CALL, name)).code is Code.NOT_FOUND


def test_a_model_of_that_name_in_the_library_hides_it(
    ollama: Ollama, echoing: Catalog, weights: bytes
) -> None:
    ollama.add("registry.ollama.ai/library/echo/latest", weights)
    assert names(echoing) == ["echo:latest"]
    assert describe(echoing, resolve(echoing, "echo").digest).weights
    assert not describe(echoing, resolve(echoing, "echo:5").digest).weights


def test_it_stands_beside_the_demo_model(ollama: Ollama, demo: BuiltinModel) -> None:
    catalog = Catalog(Library(ollama.root), demo, echo=True)
    assert sorted(names(catalog)) == ["demo:latest", "echo:latest"]
