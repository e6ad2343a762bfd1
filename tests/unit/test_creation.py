"""Models made of others, of files and of texts, and written down as Ollama reads them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pronk.frontend.cli import parameters as words
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.changes import ModelMessage
from pronk.protocol.messages.generation import SamplingOptions
from pronk.protocol.names import ModelName
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.creating.parameters import parameter_names, typed
from pronk.workers.store.creating.parts import Part, assembled
from pronk.workers.store.layout import Layer
from pronk.workers.store.looking.gguf_check import FileFacts, Kind
from pronk.workers.store.report import Report
from support.creating import MEDIA, Workshop
from support.gguf_files import F32, gguf_bytes, small_gguf, tensor
from support.store import Ollama


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "models")


@pytest.fixture
def weights(shop: Workshop, tmp_path: Path) -> str:
    return shop.upload(small_gguf(tmp_path / "weights.gguf"))


def uploaded(shop: Workshop, directory: Path, name: str, data: bytes) -> str:
    (directory / name).write_bytes(data)
    return shop.upload(directory / name)


async def refused(shop: Workshop, name: str = "new", **fields: Any) -> PronkError:
    before = shop.snapshot()
    with pytest.raises(PronkError) as caught:
        await shop.make(name, **fields)
    assert shop.snapshot() == before
    assert str(shop.root) not in caught.value.message
    return caught.value


async def test_a_model_of_a_file_is_written_down_as_ollama_does(
    shop: Workshop, weights: str
) -> None:
    blob = shop.writer.find(weights)
    assert blob
    inode = blob.stat().st_ino
    await shop.make(
        "Full",
        files={"model.gguf": weights},
        template="{{ .System }}{{ .Prompt }}",
        system="Be brief.",
        license=["MIT", "Apache"],
        parameters={"temperature": 0.5, "stop": "###", "num_ctx": 4096.0, "top_k": "40"},
        messages=[ModelMessage("user", "hi"), ModelMessage("assistant", "ho")],
        renderer="qwen3",
        parser="qwen3",
        requires="0.14.0",
    )
    manifest = shop.manifest("Full")
    assert list(manifest) == ["schemaVersion", "mediaType", "config", "layers"]
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert manifest["config"]["mediaType"] == "application/vnd.docker.container.image.v1+json"
    kinds = ("model", "template", "system", "license", "license", "params", "messages")
    assert [layer["mediaType"] for layer in manifest["layers"]] == [MEDIA + kind for kind in kinds]
    assert [shop.content(layer).decode() for layer in manifest["layers"][1:]] == [
        "{{ .System }}{{ .Prompt }}",
        "Be brief.",
        "MIT",
        "Apache",
        '{"num_ctx":4096,"stop":["###"],"temperature":0.5,"top_k":40}',
        '[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]',
    ]
    assert shop.config("Full") == {
        "model_format": "gguf",
        "model_family": "llama",
        "model_families": ["llama"],
        "model_type": "576",
        "file_type": "F16",
        "renderer": "qwen3",
        "parser": "qwen3",
        "requires": "0.14.0",
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {
            "type": "layers",
            "diff_ids": [layer["digest"] for layer in manifest["layers"]],
        },
    }
    # The weights are the very file that was uploaded.
    assert (shop.root / f"blobs/sha256-{weights}").stat().st_ino == inode
    new = [f"creating new layer {layer['digest']}" for layer in manifest["layers"][1:]]
    assert shop.statuses == [
        "parsing GGUF",
        f"using existing layer sha256:{weights}",
        *new,
        "writing manifest",
        "success",
    ]
    assert [model.name for model in shop.listed()] == ["Full:latest"]


async def test_what_is_not_given_comes_from_the_model_that_it_is_made_of(
    shop: Workshop, weights: str
) -> None:
    await shop.make(
        "base",
        files={"x": weights},
        template="{{ .Prompt }}",
        system="old",
        license=["MIT"],
        parameters={"temperature": 0.5, "num_ctx": 1024, "stop": ["a", "b"]},
        messages=[ModelMessage("user", "hi")],
        renderer="r1",
        parser="p1",
    )
    await shop.make("same", from_model="BASE:latest")
    assert shop.layers("same") == [(kind, "base:latest") for kind, _ in shop.layers("base")]
    assert {k: v for k, v in shop.config("same").items() if k != "rootfs"} == {
        k: v for k, v in shop.config("base").items() if k != "rootfs"
    }
    assert "parsing GGUF" not in shop.statuses

    await shop.make(
        "child",
        from_model="base",
        system="new",
        license=["MIT", "more"],
        parameters={"temperature": 1, "stop": ["c"], "num_ctx": None, "seed": 7},
        messages=[ModelMessage("user", "new")],
        parser="p2",
        requires="1.2",
    )
    assert shop.layers("child") == [
        *(("model", "base:latest"), ("template", "base:latest"), ("license", "base:latest")),
        *(("system", ""), ("license", ""), ("params", ""), ("messages", "")),
    ]
    assert shop.text("child", "system") == "new"
    assert shop.text("child", "params") == '{"seed":7,"stop":["c"],"temperature":1}'
    config = shop.config("child")
    assert (config["renderer"], config["parser"], config["requires"]) == ("r1", "p2", "1.2")
    shown = shop.show("child")
    assert shown.license == "MIT\nmore"
    assert shown.details.parent_model == "base:latest"
    parents = {model.name: model.details.parent_model for model in shop.listed()}
    assert parents == {
        "base:latest": "",
        "same:latest": "base:latest",
        "child:latest": "base:latest",
    }


async def test_a_template_takes_the_place_of_an_inherited_renderer(
    shop: Workshop, weights: str
) -> None:
    await shop.make("base", files={"x": weights}, template="t", renderer="r", parser="p")
    await shop.make("own", from_model="base", template="{{ .Prompt }}")
    assert "renderer" not in shop.config("own")
    assert shop.config("own")["parser"] == "p"
    await shop.make("both", from_model="base", template="{{ .Prompt }}", renderer="r2")
    assert shop.config("both")["renderer"] == "r2"


async def test_what_is_empty_is_as_good_as_not_given(shop: Workshop, weights: str) -> None:
    texts = {"template": "t", "system": "s", "license": ["l"], "parameters": {"seed": 1}}
    await shop.make("base", files={"x": weights}, messages=[ModelMessage("user", "m")], **texts)
    await shop.make(
        "same", from_model="base", template="", system="", license=[""], parameters={}, messages=[]
    )
    assert [kind for kind, _ in shop.layers("same")] == [kind for kind, _ in shop.layers("base")]


async def test_the_built_in_model_becomes_a_blob(shop: Workshop, demo: BuiltinModel) -> None:
    shop.builtin = demo
    await shop.make("mine", from_model="demo", system="Be brief.")
    assert shop.layers("mine") == [("model", "demo:latest"), ("system", "")]
    model = demo.model()
    assert model
    assert model.blob in shop.blobs()
    assert shop.show("mine").details.parent_model == "demo:latest"
    # It is its owner's from now on, under its own name, too.
    await shop.make("demo", from_model="demo", system="Be long.")
    assert shop.show("demo").system == "Be long."
    assert not list((shop.root / ".pronk/scratch").iterdir())


async def test_a_model_that_ollama_wrote_can_be_built_on(shop: Workshop, weights: str) -> None:
    ollama = Ollama(shop.root)
    content = shop.writer.find(weights)
    assert content
    ollama.add(
        "registry.ollama.ai/library/phi/latest",
        content.read_bytes(),
        ollama.layer("template", "{{ .Prompt }}"),
        ollama.layer("params", '{"stop":["x"],"custom":{"a":[1]},"temperature":0.5}'),
        ollama.layer("embed", "something old"),
    )
    await shop.make("mine", from_model="phi", parameters={"temperature": 0.1})
    assert shop.layers("mine") == [
        *(("model", "phi:latest"), ("template", "phi:latest"), ("embed", "phi:latest")),
        ("params", ""),
    ]
    assert shop.text("mine", "params") == '{"custom":{"a":[1]},"stop":["x"],"temperature":0.1}'


async def test_a_model_that_is_not_there_is_pulled(
    shop: Workshop, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await refused(shop, from_model="hf.co/org/repo:q8")).code is Code.NOT_FOUND
    assert shop.pulled == ["hf.co/org/repo:q8"]
    assert shop.statuses == []

    async def pull(name: ModelName, report: Report) -> None:
        report("pulling manifest")
        path = shop.writer.find(weights)
        assert path
        Ollama(shop.root).add("/".join(name.parts), path.read_bytes())
        report("success")

    monkeypatch.setattr(shop, "pull", pull)
    await shop.make("mine", from_model="hf.co/org/repo:q8")
    assert shop.statuses[0] == "pulling manifest"
    assert shop.statuses.count("success") == 1
    assert shop.layers("mine") == [("model", "hf.co/org/repo:q8")]


async def test_files_are_told_apart_by_what_is_in_them(
    shop: Workshop, weights: str, tmp_path: Path
) -> None:
    projector = shop.upload(small_gguf(tmp_path / "p", "clip"))
    adapter = shop.upload(small_gguf(tmp_path / "a", metadata={"general.type": "adapter"}))
    await shop.make(
        "seeing", files={"a.gguf": projector, "b.gguf": weights}, adapters={"c.gguf": adapter}
    )
    kinds = [kind for kind, _ in shop.layers("seeing")]
    assert kinds == ["model", "projector", "adapter"]
    assert shop.config("seeing")["model_families"] == ["llama", "clip"]
    assert shop.config("seeing")["model_family"] == "llama"
    assert shop.show("seeing").projector_info["general.architecture"] == "clip"

    # An adapter that is there already is there once.
    await shop.make("more", from_model="seeing", adapters={"c": adapter})
    assert [kind for kind, _ in shop.layers("more")] == kinds


def part(kind: Kind, digest: str, architecture: str = "llama", origin: str = "") -> Part:
    facts = FileFacts(kind, architecture, "F16", "8B", True, 100)
    return Part(Layer(kind, digest * 64, 100, origin), Path("x"), facts)


BASE = [part("model", "0", origin="base:latest"), Part(Layer("template", "9" * 64, 10, "b"))]
WEIGHTS, PROJECTOR = part("model", "1"), part("projector", "2", "clip")
ADAPTER, FOREIGN = part("adapter", "3"), part("adapter", "4", "qwen2")


@pytest.mark.parametrize(
    ("base", "files", "adapters", "kinds"),
    [
        ([], {"w": WEIGHTS}, {}, ["model"]),
        ([], {"a": ADAPTER, "p": PROJECTOR, "w": WEIGHTS}, {}, ["model", "projector", "adapter"]),
        (BASE, {"p": PROJECTOR}, {"a": ADAPTER}, ["model", "template", "projector", "adapter"]),
        ([*BASE, ADAPTER], {}, {"a": ADAPTER}, ["model", "template", "adapter"]),
        ([], {"w": WEIGHTS, "again": WEIGHTS}, {}, ["model"]),
    ],
)
def test_files_that_belong_together_are_one_model(
    base: list[Part], files: dict[str, Part], adapters: dict[str, Part], kinds: list[str]
) -> None:
    assert [each.layer.kind for each in assembled(base, files, adapters)] == kinds


@pytest.mark.parametrize(
    ("base", "files", "adapters", "said"),
    [
        ([], {"p": PROJECTOR}, {}, "none of the files is a model's weights"),
        ([], {"a": WEIGHTS, "b": part("model", "5")}, {}, "'a', 'b' are weights each"),
        (BASE, {"w": WEIGHTS}, {}, "both `from` and the file 'w' bring weights"),
        (BASE, {}, {"w": WEIGHTS}, "'w' is no adapter"),
        (BASE, {}, {"a": FOREIGN}, "'qwen2', and this one is 'llama'"),
        ([], {"w": WEIGHTS, "a": FOREIGN}, {}, "'qwen2', and this one is 'llama'"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    base: list[Part], files: dict[str, Part], adapters: dict[str, Part], said: str
) -> None:
    with pytest.raises(PronkError) as caught:
        assembled(base, files, adapters)
    assert caught.value.code is Code.INVALID_REQUEST
    assert said in caught.value.message


NOTHING: dict[str, Any] = {}
SOME = {"x": "0" * 64}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (NOTHING, "give `from`, or `files`"),
        ({"files": SOME}, "upload it with POST /api/blobs/sha256:000"),
        ({"from_model": "a/b/c/d/e"}, "not a model name"),
        ({"files": {"model.safetensors": "0" * 64}}, "convert_hf_to_gguf.py"),
        ({"files": {"sub/config.json": "0" * 64}}, "convert_hf_to_gguf.py"),
        ({"files": {"../../x": "0" * 64}}, "is not the name of a file"),
        ({"files": {"/etc/passwd": "0" * 64}}, "is not the name of a file"),
        ({"files": {"C:\\x": "0" * 64}}, "is not the name of a file"),
        ({"files": {"a\0b": "0" * 64}}, "is not the name of a file"),
        ({"files": {f"{n}": "0" * 64 for n in range(33)}}, "32 at most"),
        ({"files": SOME, "adapters": {"": "0" * 64}}, "is not the name of a file"),
        ({"files": SOME, "quantize": "q9_9"}, "there are F32, F16, BF16, Q8_0"),
        ({"files": SOME, "parameters": {"warmth": 1}}, "no parameter 'warmth'"),
        ({"files": SOME, "parameters": {"num_ctx": "many"}}, "num_ctx must be an integer"),
        ({"files": SOME, "parameters": {"num_ctx": 1.5}}, "num_ctx must be an integer"),
        ({"files": SOME, "parameters": {"num_ctx": "4_096"}}, "num_ctx must be an integer"),
        ({"files": SOME, "parameters": {"num_ctx": True}}, "num_ctx must be an integer"),
        ({"files": SOME, "parameters": {"seed": "9" * 5000}}, "seed must be an integer"),
        ({"files": SOME, "parameters": {"seed": "9" * 400}}, "seed must be an integer"),
        ({"files": SOME, "parameters": {"top_p": "nan"}}, "top_p must be a number"),
        ({"files": SOME, "parameters": {"top_p": "1e999"}}, "top_p must be a number"),
        ({"files": SOME, "parameters": {"use_mmap": "yes"}}, "use_mmap must be true or false"),
        ({"files": SOME, "parameters": {"stop": [1]}}, "stop must be a text or a list"),
        ({"files": SOME, "parameters": {"stop": ["x"] * 129}}, "at most 128 texts"),
        ({"files": SOME, "messages": [ModelMessage("robot", "x")]}, "messages[0]: role must be"),
        ({"files": SOME, "license": ["x"] * 33}, "32 at most"),
        ({"files": SOME, "template": "x" * 2**21}, "the limit is 1024 KiB"),
        ({"files": SOME, "system": "ä" * 2**20 + "x"}, "the limit is 2 MiB"),
        ({"files": SOME, "renderer": "a\nFROM b"}, "renderer: must be a name"),
        ({"files": SOME, "requires": "latest"}, "requires: must be a version"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_looked_at(
    shop: Workshop, fields: dict[str, Any], said: str
) -> None:
    error = await refused(shop, **fields)
    assert error.code is Code.INVALID_REQUEST
    assert said in error.message


@pytest.mark.parametrize(
    "source", ["{{ a" + "+a" * 500_000 + " }}", "{{ " + "not " * 250_000 + "a }}"]
)
async def test_a_template_that_its_reader_dies_of_is_refused(
    shop: Workshop, weights: str, source: str
) -> None:
    error = await refused(shop, files={"x": weights}, template=source)
    assert error.code is Code.INVALID_REQUEST
    assert error.message == "template: it cannot be used: it takes too much memory or time"


@pytest.mark.parametrize("name", ["", "a:b:c/d", "../x", "a/../b", "x" * 600, "a\0b", "C:\\x"])
async def test_a_name_that_is_none_is_refused(shop: Workshop, name: str) -> None:
    assert (await refused(shop, name, files=SOME)).code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("data", "said"),
    [
        # CVE-2026-7482: what lies behind the file in memory would have become weights.
        (gguf_bytes(tensor(shape=(1 << 20,)), data=128), "behind the end of the file"),
        (gguf_bytes(tensor(shape=(32,), kind=F32), data=64), "behind the end of the file"),
        (b"GGUF", "ends within its header"),
        (struct.pack("<Q", 60) + b'{"__metadata__":{}}', "a safetensors file"),
    ],
)
async def test_a_file_that_is_not_whole_becomes_no_model(
    shop: Workshop, tmp_path: Path, data: bytes, said: str
) -> None:
    digest = uploaded(shop, tmp_path, "hostile", data)
    error = await refused(shop, files={"hostile.gguf": digest}, quantize="q4_0")
    assert error.code is Code.INVALID_REQUEST
    assert error.message.startswith("file 'hostile.gguf' cannot be used: ")
    assert said in error.message


async def test_a_hostile_model_of_the_library_becomes_no_other(shop: Workshop) -> None:
    ollama = Ollama(shop.root)
    hostile = gguf_bytes(tensor(offset=1 << 40), data=128)
    ollama.add("registry.ollama.ai/library/bad/latest", hostile)
    ollama.add("registry.ollama.ai/library/none/latest", None)
    assert "model 'bad:latest' cannot be used" in (await refused(shop, from_model="bad")).message
    assert "has no GGUF file" in (await refused(shop, from_model="none")).message


async def test_a_model_whose_weights_are_something_else_becomes_no_other(
    shop: Workshop, tmp_path: Path
) -> None:
    projector = small_gguf(tmp_path / "projector.gguf", "clip").read_bytes()
    Ollama(shop.root).add("registry.ollama.ai/library/eyes/latest", projector)
    error = await refused(shop, from_model="eyes")
    assert error.code is Code.INVALID_REQUEST
    assert "model 'eyes:latest' cannot be used: its weights are a projector" in error.message


async def test_a_model_of_too_many_files_becomes_no_other(shop: Workshop, weights: str) -> None:
    await shop.make("base", files={"x": weights})
    manifest = shop.manifest("base")
    manifest["layers"] += [dict(manifest["layers"][0], mediaType=MEDIA + "adapter")] * 40
    path = shop.root / "manifests/registry.ollama.ai/library/base/latest"
    path.write_text(json.dumps(manifest))
    assert "more than 32 files" in (await refused(shop, from_model="base")).message


async def test_a_model_that_has_the_name_is_replaced_and_its_own_blobs_go(
    shop: Workshop, weights: str, tmp_path: Path
) -> None:
    assert await shop.make("mine", files={"x": weights}, system="first") is None
    first = shop.blobs()
    old = shop.listed()[0].digest
    other = shop.upload(small_gguf(tmp_path / "other", seed=1))
    await refused(shop, "mine", files={"x": "f" * 64})
    assert await shop.make("MINE", files={"x": other}, system="second") == old
    assert [model.name for model in shop.listed()] == ["mine:latest"]
    assert shop.show("mine").system == "second"
    assert not first & shop.blobs()
    assert shop.statuses[-3:] == ["writing manifest", "removing unused layers", "success"]


async def test_a_model_may_be_made_of_itself(shop: Workshop, weights: str) -> None:
    await shop.make("mine", files={"x": weights}, system="first")
    await shop.make("mine", from_model="mine", system="second")
    assert shop.statuses[-3:] == ["writing manifest", "removing unused layers", "success"]
    assert shop.layers("mine") == [("model", "mine:latest"), ("system", "")]
    assert shop.text("mine", "system") == "second"


async def test_one_that_is_cancelled_changes_nothing(shop: Workshop, weights: str) -> None:
    before = shop.snapshot()
    task = asyncio.create_task(shop.make("mine", files={"x": weights}))
    while "parsing GGUF" not in shop.statuses:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shop.snapshot() == before
    await shop.make("mine", files={"x": weights})


def test_every_option_of_sampling_can_be_a_parameter() -> None:
    options = {field.name for field in dataclasses.fields(SamplingOptions)} - {"logit_bias"}
    for name in options:
        given = next(g for g in (1, True, ["x"]) if accepted(name, g))
        assert typed({name: given})[name] in (1, True, ["x"])


def accepted(name: str, given: Any) -> bool:
    try:
        typed({name: given})
    except PronkError as error:
        assert "there is no parameter" not in error.message  # noqa: PT017
        return False
    return True


def test_the_command_line_knows_the_same_parameters() -> None:
    assert words.names() == parameter_names()
