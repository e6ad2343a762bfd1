from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.library import (
    DescribeModel,
    ModelDetails,
    ModelSummary,
    ResolveModel,
    ShowModel,
)
from pronk.workers.store import layout
from pronk.workers.store.builtin import BuiltinModel
from pronk.workers.store.catalog import Catalog
from pronk.workers.store.details import capabilities_of
from pronk.workers.store.gguf_facts import HeaderFacts
from pronk.workers.store.layout import Library
from support.models import write_reciting_model
from support.store import (
    CALL,
    CONFIG,
    MEDIA,
    PHI,
    Ollama,
    describe,
    listed,
    names,
    refusal,
    resolve,
    show,
    tiny_gguf,
)


def test_a_library_that_is_not_there_is_empty_and_stays_so(
    ollama: Ollama, catalog: Catalog
) -> None:
    assert listed(catalog) == []
    error = refusal(catalog, ResolveModel(CALL, "phi"))
    assert error.code is Code.NOT_FOUND
    assert not ollama.root.exists()


def test_a_model_is_listed_as_ollama_lists_it(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    manifest = ollama.add(PHI, weights, ollama.layer("license", "MIT"))
    config = len(json.dumps(CONFIG))
    assert listed(catalog) == [
        ModelSummary(
            name="phi:latest",
            digest=hashlib.sha256(manifest.read_bytes()).hexdigest(),
            size=len(weights) + len("MIT") + config,
            modified_at=1_700_000_000.0,
            details=ModelDetails("", "gguf", "llama", ["llama"], "8.0B", "Q4_K_M"),
        )
    ]


def test_the_most_recently_modified_model_is_listed_first(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add("registry.ollama.ai/library/old/latest", weights, modified_at=1e9)
    ollama.add("hf.co/org/repo-GGUF/Q8_0", weights, modified_at=1.7e9)
    ollama.add("registry.ollama.ai/eva/mid/v1", weights, modified_at=1.5e9)
    assert names(catalog) == ["hf.co/org/repo-GGUF:Q8_0", "eva/mid:v1", "old:latest"]


def test_every_listed_model_can_be_resolved_by_its_name_and_described_by_its_digest(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    for name in (PHI, "hf.co/org/repo/Q8_0", "registry.ollama.ai/eva/Phi/V1", "h:80/a/b/c"):
        ollama.add(name, weights, config=CONFIG | {"of": name})
    fresh = Catalog(Library(ollama.root), None)
    for model in listed(catalog):
        assert resolve(catalog, model.name).digest == model.digest
        facts = describe(fresh, model.digest)
        assert (facts.name, facts.size, facts.details) == (model.name, model.size, model.details)
        assert Path(facts.weights).read_bytes() == weights
        assert facts.context_length == 2048


@pytest.mark.parametrize("asked", ["phi", "PHI", "Phi:Latest", "library/phi", "LIBRARY/pHi:latest"])
def test_upper_and_lower_case_do_not_count(
    ollama: Ollama, catalog: Catalog, weights: bytes, asked: str
) -> None:
    ollama.add(PHI, weights)
    assert resolve(catalog, asked).name == "phi:latest"


def test_the_librarys_own_case_is_found_and_shown(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add("hf.co/TheBloke/Phi-GGUF/Q4_K_M", weights)
    assert (
        resolve(catalog, "hf.co/thebloke/phi-gguf:q4_k_m").name == "hf.co/TheBloke/Phi-GGUF:Q4_K_M"
    )


def test_a_copy_does_not_take_the_name_of_the_model_that_was_asked_for(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    manifest = ollama.add(PHI, weights)
    ollama.manifest("registry.ollama.ai/library/zzz/latest", manifest.read_bytes())
    ollama.manifest("registry.ollama.ai/library/aaa/latest", manifest.read_bytes())
    digest = resolve(catalog, "phi").digest
    assert {model.digest for model in listed(catalog)} == {digest}
    assert describe(catalog, digest).name == "phi:latest"


def test_what_changes_beneath_is_seen_at_once(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    manifest = ollama.add(PHI, weights)
    first = resolve(catalog, "phi").digest
    assert names(catalog) == ["phi:latest"]
    ollama.add(PHI, weights, ollama.layer("system", "Be brief."))
    second = resolve(catalog, "phi").digest
    assert second != first
    assert [model.digest for model in listed(catalog)] == [second]
    # A request that was accepted under the old digest still gets what it was promised.
    assert describe(catalog, first).digest == first
    manifest.unlink()
    assert names(catalog) == []
    assert refusal(catalog, ResolveModel(CALL, "phi")).code is Code.NOT_FOUND


def test_weights_that_disappear_end_in_a_clear_error(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights)
    digest = resolve(catalog, "phi").digest
    Path(describe(catalog, digest).weights).unlink()
    assert names(catalog) == []
    assert refusal(catalog, DescribeModel(CALL, digest)).code is Code.NOT_FOUND
    error = refusal(catalog, ResolveModel(CALL, "phi"))
    assert error.code is Code.LOAD_FAILED
    assert "its weights file is missing" in error.message
    assert "pronk pull phi:latest" in error.message


LAYER = {"mediaType": MEDIA + "model", "digest": "sha256:" + "0" * 64, "size": 1}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "no list of layers"),
        (b'{"layers": "x"}', "no list of layers"),
        (b'{"layers": [1]}', "a layer that is none"),
        (json.dumps({"layers": [LAYER | {"size": -1}]}).encode(), "a layer that is none"),
        (json.dumps({"layers": [LAYER | {"size": 2**70}]}).encode(), "a layer that is none"),
        (json.dumps({"layers": [LAYER | {"size": True}]}).encode(), "a layer that is none"),
        (json.dumps({"layers": [LAYER | {"size": 2**62}] * 4}).encode(), "impossible sizes"),
        (json.dumps({"layers": [LAYER | {"digest": "sha256:../../x"}]}).encode(), "a digest"),
        (json.dumps({"layers": [LAYER | {"digest": "sha256:" + "A" * 64}]}).encode(), "a digest"),
        (json.dumps({"layers": [LAYER | {"digest": 7}]}).encode(), "a layer that is none"),
        (json.dumps({"layers": [LAYER]}).encode(), "its weights file is missing"),
        (json.dumps({"layers": [], "config": LAYER}).encode(), "its config is missing"),
        (b" " * (1024 * 1024 + 1), "larger than 1024 KiB"),
    ],
)
def test_a_broken_manifest_is_left_out_of_lists_and_explained_by_name(
    ollama: Ollama, catalog: Catalog, weights: bytes, content: bytes, reason: str
) -> None:
    ollama.add("registry.ollama.ai/library/good/latest", weights)
    ollama.manifest(PHI, content)
    assert names(catalog) == ["good:latest"]
    for question in (ResolveModel(CALL, "phi"), ShowModel(CALL, "phi")):
        error = refusal(catalog, question)
        assert error.code is Code.LOAD_FAILED
        assert reason in error.message
        assert str(ollama.root) not in error.message


def test_a_broken_config_is_left_out_and_explained(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    path = ollama.add(PHI, weights)
    digest = json.loads(path.read_bytes())["config"]["digest"]
    for content in (b"x", b"[]", b" " * 2**21):
        ollama.path_of(digest).write_bytes(content)
        assert names(catalog) == []
        assert "its config" in refusal(catalog, ResolveModel(CALL, "phi")).message


def test_links_directories_and_pipes_in_the_place_of_files_are_refused(
    ollama: Ollama, catalog: Catalog, weights: bytes, tmp_path: Path
) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(weights)
    for name, make in (
        ("a", lambda path: path.symlink_to(outside)),
        ("b", lambda path: path.mkdir()),
        ("c", lambda path: os.mkfifo(path)),
        ("d", lambda path: path.symlink_to(path)),
    ):
        manifest = ollama.add(f"registry.ollama.ai/library/{name}/latest", name.encode() + weights)
        blob = ollama.path_of(json.loads(manifest.read_bytes())["layers"][0]["digest"])
        blob.unlink()
        make(blob)
        assert refusal(catalog, ResolveModel(CALL, name)).code is Code.LOAD_FAILED
        manifest.unlink()
        make(manifest)
        assert refusal(catalog, ResolveModel(CALL, name)).code is Code.LOAD_FAILED
    assert names(catalog) == []


def test_a_library_whose_directories_are_links_works(
    ollama: Ollama, weights: bytes, tmp_path: Path
) -> None:
    ollama.add(PHI, weights)
    linked = tmp_path / "linked"
    linked.mkdir()
    for part in ("manifests", "blobs"):
        (linked / part).symlink_to(ollama.root / part)
    assert names(Catalog(Library(linked), None)) == ["phi:latest"]
    (tmp_path / "all").symlink_to(linked)
    assert names(Catalog(Library(tmp_path / "all"), None)) == ["phi:latest"]


def test_strange_entries_among_the_manifests_do_no_harm(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights)
    manifests = ollama.root / "manifests"
    (manifests / ".DS_Store").write_bytes(b"x")
    (manifests / "registry.ollama.ai" / "file").write_bytes(b"x")
    (manifests / "registry.ollama.ai/library/phi/.tmp").write_bytes(b"x")
    (manifests / "registry.ollama.ai/library/phi" / os.fsdecode(b"\xff")).write_bytes(b"x")
    (manifests / "registry.ollama.ai/library/sp ace").mkdir()
    assert names(catalog) == ["phi:latest"]


def test_what_the_config_does_not_say_the_file_does(
    ollama: Ollama, catalog: Catalog, weights: bytes
) -> None:
    ollama.add(PHI, weights, config={"model_format": "gguf", "file_type": "unknown"})
    details = ModelDetails("", "gguf", "llama", ["llama"], "2K", "F16")
    assert listed(catalog)[0].details == details
    assert show(catalog, "phi").details == details
    assert describe(catalog, resolve(catalog, "phi").digest).details == details


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ends within its header"),
        (os.urandom(4096), "does not begin with 'GGUF'"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 2**60), "claims"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "does not name its architecture"),
    ],
)
def test_a_file_that_is_no_gguf_is_listed_and_shown_but_not_loaded(
    ollama: Ollama, catalog: Catalog, content: bytes, reason: str
) -> None:
    ollama.add(PHI, content, config={})
    assert listed(catalog)[0].details.family == "unknown"
    resolved = resolve(catalog, "phi")
    assert resolved.capabilities == ["completion"]
    assert show(catalog, "phi").details.quantization_level == "unknown"
    error = refusal(catalog, DescribeModel(CALL, resolved.digest))
    assert error.code is Code.LOAD_FAILED
    assert "is not a valid GGUF" in error.message
    assert reason in error.message


def test_a_truncated_file_is_not_loaded(ollama: Ollama, catalog: Catalog, weights: bytes) -> None:
    ollama.add(PHI, weights[:-1000])
    error = refusal(catalog, DescribeModel(CALL, resolve(catalog, "phi").digest))
    assert error.code is Code.LOAD_FAILED
    assert "984 bytes behind the end of the file" in error.message


def test_a_model_without_a_gguf_file_is_listed_but_not_loaded(
    ollama: Ollama, catalog: Catalog
) -> None:
    ollama.add(PHI, None, config={"model_format": "safetensors"})
    assert listed(catalog)[0].details.format == "safetensors"
    error = refusal(catalog, DescribeModel(CALL, resolve(catalog, "phi").digest))
    assert "GGUF models only" in error.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("part", ["weights", "manifest", "directory"])
def test_what_may_not_be_read_is_left_out_and_explained(
    ollama: Ollama, catalog: Catalog, weights: bytes, part: str
) -> None:
    manifest = ollama.add(PHI, weights)
    blob = ollama.path_of(json.loads(manifest.read_bytes())["layers"][0]["digest"])
    locked = {"weights": blob, "manifest": manifest, "directory": manifest.parent}[part]
    locked.chmod(0)
    try:
        assert names(catalog) == []
        error = refusal(catalog, ResolveModel(CALL, "phi"))
    finally:
        locked.chmod(0o700)
    if part != "directory":
        assert error.code is Code.LOAD_FAILED
        assert "may not be read by the user that Pronk runs as" in error.message
        assert "pronk pull" not in error.message


def test_an_encoder_can_embed_and_nothing_else(
    ollama: Ollama, catalog: Catalog, tmp_path: Path
) -> None:
    ollama.add(PHI, tiny_gguf(tmp_path / "bert.gguf", architecture="bert").read_bytes())
    assert resolve(catalog, "phi").capabilities == ["embedding"]
    assert show(catalog, "phi").capabilities == ["embedding"]


def test_a_model_with_tokens_for_a_gap_can_insert(
    ollama: Ollama, catalog: Catalog, tmp_path: Path
) -> None:
    write_reciting_model(tmp_path / "coder.gguf", ["ab"], infill="ab")
    ollama.add(PHI, (tmp_path / "coder.gguf").read_bytes())
    assert resolve(catalog, "phi").capabilities == ["completion", "insert"]
    assert show(catalog, "phi").capabilities == ["completion", "insert"]


def test_an_unknown_model_is_named_with_how_to_get_it(
    catalog: Catalog, demo: BuiltinModel, ollama: Ollama
) -> None:
    for asked in (ResolveModel(CALL, "gemma3:4b"), ShowModel(CALL, "gemma3:4b")):
        error = refusal(Catalog(Library(ollama.root), demo), asked)
        assert error.code is Code.NOT_FOUND
        assert error.message.startswith("model 'gemma3:4b' not found, try pulling it first")
        assert "pronk pull gemma3:4b" in error.message
        assert "`demo`" in error.message
    assert "demo" not in refusal(catalog, ResolveModel(CALL, "gemma3")).message
    assert "PRONK_DEMO_MODEL" in refusal(catalog, ResolveModel(CALL, "demo")).message
    assert refusal(catalog, DescribeModel(CALL, "0" * 64)).code is Code.NOT_FOUND
    assert refusal(catalog, ResolveModel(CALL, "../x")).code is Code.INVALID_REQUEST


def test_a_list_of_what_has_not_changed_reads_no_file(
    ollama: Ollama, catalog: Catalog, weights: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = ollama.add(PHI, weights)
    ollama.add("registry.ollama.ai/library/other/latest", weights)
    before = listed(catalog)
    read: list[Path] = []
    real = layout.read_small

    def counted(path: Path, limit: int, what: str) -> bytes:
        read.append(path)
        return real(path, limit, what)

    monkeypatch.setattr(layout, "read_small", counted)
    assert listed(catalog) == before
    assert read == []
    # Written in place, as Ollama does it: only the file itself tells.
    content = manifest.read_bytes()
    manifest.write_bytes(content + b" ")
    assert {model.name for model in listed(catalog)} == {model.name for model in before}
    assert manifest in read


def test_directories_that_are_links_are_followed_within_the_library_and_not_out_of_it(
    ollama: Ollama, catalog: Catalog, weights: bytes, tmp_path: Path
) -> None:
    manifest = ollama.add(PHI, weights)
    library = manifest.parents[1]
    (tmp_path / "outside" / "phi").mkdir(parents=True)
    (tmp_path / "outside" / "phi" / "latest").write_bytes(manifest.read_bytes())
    (library.parent / "eva").symlink_to(tmp_path / "outside")
    (library.parent / "own").symlink_to(library)
    (library / "psi").symlink_to(manifest.parent)
    for _ in range(2):
        whole = ["own/phi:latest", "own/psi:latest", "phi:latest", "psi:latest"]
        assert sorted(names(catalog)) == whole
        error = refusal(catalog, ResolveModel(CALL, "eva/phi"))
        assert "a link that leads out of the library" in error.message


def test_what_a_models_template_can_do_is_named_in_ollamas_order() -> None:
    told = {"thinking", "tools", "vision", "insert", "embedding", "flying"}
    assert capabilities_of(None, told) == ["completion", "tools", "insert", "vision", "thinking"]
    assert capabilities_of(None) == ["completion"]
    facts = HeaderFacts(
        "llama", "Q8_0", "1B", 9, embeds=False, infills=True, sees=False, problem=""
    )
    assert capabilities_of(facts, ["tools"]) == ["completion", "tools", "insert"]
    assert capabilities_of(replace(facts, embeds=True), told) == ["embedding"]
