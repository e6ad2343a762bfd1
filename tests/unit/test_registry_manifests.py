"""Manifests from registries: what is a model, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store.registry.manifests import (
    DOCKER_MANIFEST,
    MAX_MANIFEST,
    MAX_SIZE,
    OCI_MANIFEST,
    Manifest,
    parse_manifest,
)

A, B, C = ("sha256:" + digit * 64 for digit in "abc")
CONFIG = "application/vnd.docker.container.image.v1+json"
OLLAMA = "application/vnd.ollama.image."


def descriptor(media_type: str, digest: str = A, size: Any = 7) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest, "size": size}


def manifest(**changes: Any) -> dict[str, Any]:
    value = {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": descriptor(CONFIG, C),
        "layers": [descriptor(OLLAMA + "model"), descriptor(OLLAMA + "params", B, 0)],
    }
    return {name: part for name, part in {**value, **changes}.items() if part is not None}


def parsed(value: Any) -> Manifest:
    return parse_manifest(json.dumps(value).encode())


def refused(raw: bytes) -> str:
    with pytest.raises(PronkError) as caught:
        parse_manifest(raw)
    assert caught.value.code is Code.REGISTRY_FAILED
    assert len(caught.value.message) < 400
    assert caught.value.message.isprintable()
    return caught.value.message


def test_a_model_has_layers_and_a_config() -> None:
    model = parsed(manifest())
    assert [(blob.digest[0], blob.size) for blob in model.blobs] == [("a", 7), ("b", 0), ("c", 7)]
    assert model.layers[0].media_type == OLLAMA + "model"
    assert model.media_type == DOCKER_MANIFEST


def test_a_blob_that_is_named_twice_is_one() -> None:
    twice = [descriptor(OLLAMA + "license"), descriptor(OLLAMA + "license")]
    assert len(parsed(manifest(layers=twice)).blobs) == 2


@pytest.mark.parametrize(
    "value",
    [
        manifest(mediaType=None),
        manifest(
            mediaType=OCI_MANIFEST, config=descriptor("application/vnd.oci.image.config.v1+json")
        ),
        manifest(schemaVersion=None),
        manifest(annotations={"any": "thing"}),
        manifest(layers=[{**descriptor(OLLAMA + "model"), "from": "/somewhere"}]),
    ],
)
def test_forms_that_models_have(value: dict[str, Any]) -> None:
    assert parsed(value).layers


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "not a JSON object"),
        (None, "not a JSON object"),
        ("manifest", "not a JSON object"),
        (manifest(layers=None), "no layers"),
        (manifest(layers=[]), "no layers"),
        (manifest(layers={"a": 1}), "no layers"),
        (manifest(layers=[None]), "lacks a media type"),
        (manifest(config=None), "its config lacks"),
        (manifest(config=[]), "its config lacks"),
        (manifest(schemaVersion=1), "form is not known"),
        (manifest(mediaType="application/vnd.docker.distribution.manifest.v1+json"), "not known"),
        (manifest(mediaType=7), "form is not known"),
        (
            manifest(mediaType="application/vnd.oci.image.index.v1+json", manifests=[]),
            "list of images",
        ),
        (
            {"mediaType": "application/vnd.docker.distribution.manifest.list.v2+json"},
            "list of images",
        ),
        (manifest(manifests=[]), "list of images"),
        (
            manifest(layers=[descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip")]),
            "not a model for Ollama",
        ),
        (
            manifest(config=descriptor("application/vnd.docker.ai.model.config.v0.1+json")),
            "not a model for Ollama",
        ),
        (manifest(config=descriptor("text/html")), "not a model for Ollama"),
        (manifest(layers=[descriptor("x" * 256)]), "lacks a media type"),
        (manifest(layers=[descriptor("\x1b[2J\n")]), "not a model for Ollama"),
        *(
            (manifest(layers=[descriptor(OLLAMA + "model", A, size)]), "size")
            for size in (-1, MAX_SIZE + 1, 2**70, True, "7", 7.5, None)
        ),
        *(
            (manifest(layers=[descriptor(OLLAMA + "model", digest)]), "digest")
            for digest in (
                "a" * 64,
                "sha256:" + "a" * 63,
                "sha256:" + "A" * 64,
                "sha256:" + "a" * 64 + "\n",
                "sha256:../../../../etc/passwd",
                "sha512:" + "a" * 128,
                "md5:" + "a" * 32,
                "",
            )
        ),
        (
            manifest(layers=[descriptor(OLLAMA + "a"), descriptor(OLLAMA + "b", A, 8)]),
            "two sizes for one blob",
        ),
        (
            manifest(
                layers=[descriptor(OLLAMA + "a", A, MAX_SIZE), descriptor(OLLAMA + "b", B, 1)]
            ),
            "impossible sizes",
        ),
    ],
)
def test_what_is_no_model_is_refused(value: Any, problem: str) -> None:
    assert problem in refused(json.dumps(value).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"<html>404</html>",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"layers":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\x1f\x8b\x08\x00" + bytes(100),  # gzip
        b'{"layers": [' + b'"x",' * 200_000 + b'"x"]}',
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    refused(raw)


def test_a_huge_manifest_is_refused_before_it_is_read() -> None:
    assert "larger than 1024 KiB" in refused(b"[" * (MAX_MANIFEST + 1))


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(manifest())), _anything))
def test_nothing_but_a_clear_error_comes_of_nonsense(changes: dict[str, Any]) -> None:
    with contextlib.suppress(PronkError):
        assert parsed({**manifest(), **changes}).layers
