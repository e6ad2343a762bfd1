"""A worker that joined another host's server finds sockets and files where it is itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.keys import client_keys
from pronk.protocol.messages.generation import Caller, Generate
from pronk.protocol.messages.library import ModelDetails, ModelFacts, ModelPart, PartKind
from pronk.protocol.messages.placement import Load, Share
from pronk.protocol.settings import load_settings
from pronk.protocol.state import StateDirectory
from pronk.workers.home import Home
from pronk.workers.store.builtin import BuiltinModel
from support.keys import Hosts
from support.library import add_model
from support.store import tiny_gguf

DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "1M", "F32")


def home(hosts: Hosts, tmp_path: Path, **settings: Any) -> Home:
    chosen = load_settings(
        scheduler="box.example.org:11500",
        keys=hosts.client("other"),
        state=tmp_path / "state",
        PRONK_MODELS=tmp_path / "models",
        threads=3,
        **settings,
    )
    return Home.of(chosen, StateDirectory(chosen.state))


def load(blob: str | None, *parts: ModelPart) -> Load:
    facts = ModelFacts(
        "m:latest", "d" * 64, "/elsewhere/blob", 1, 64, DETAILS, blob=blob, parts=list(parts)
    )
    return Load(facts, 64, threads=99, shares=[Share("CUDA0", "0000:01", "CUDA", 1.0)], layers=9)


def header(reply_to_tcp: str | None) -> Generate:
    ipc = "ipc:///elsewhere/f.sock"
    return Generate(
        "1" * 32, 1, "m", "d" * 64, Caller(), "f" * 16, ipc, 1, 1, reply_to_tcp=reply_to_tcp
    )


def test_beside_its_own_scheduler_everything_is_as_it_is_told(tmp_path: Path):
    settings = load_settings(state=tmp_path)
    here = Home.of(settings, StateDirectory(tmp_path))
    assert here.scheduler == StateDirectory(tmp_path).scheduler
    assert here.keys is None
    assert here.load(load(None)) == load(None)
    assert here.reply_to(header("tcp://0.0.0.0:1")) == "ipc:///elsewhere/f.sock"


def test_it_joins_with_its_keys(hosts: Hosts, tmp_path: Path):
    there = home(hosts, tmp_path)
    assert there.scheduler == "tcp://box.example.org:11500"
    assert there.keys == client_keys(hosts.root / "other-keys")


@pytest.mark.parametrize(
    ("told", "used"),
    [
        ("tcp://0.0.0.0:11501", "tcp://box.example.org:11501"),
        ("tcp://[::]:11501", "tcp://box.example.org:11501"),
        ("tcp://10.0.0.7:11501", "tcp://10.0.0.7:11501"),
        ("tcp://[fe80::1]:11501", "tcp://[fe80::1]:11501"),
    ],
)
def test_a_frontend_is_reached_over_tcp(hosts: Hosts, tmp_path: Path, told: str, used: str):
    assert home(hosts, tmp_path).reply_to(header(told)) == used


@pytest.mark.parametrize("told", [None, "tcp://:1", "tcp://x:99999", "tcp://a@b;c:1"])
def test_a_frontend_without_a_usable_address_is_told_apart(
    hosts: Hosts, tmp_path: Path, told: str | None
):
    with pytest.raises(ValueError, match=r"does not listen|has no|form"):
        home(hosts, tmp_path).reply_to(header(told))


def test_a_model_is_found_by_its_digest_in_the_hosts_own_library(hosts: Hosts, tmp_path: Path):
    add_model(tmp_path / "models", "m", tiny_gguf(tmp_path / "m.gguf"))
    (blob,) = (
        path.name.removeprefix("sha256-")
        for path in (tmp_path / "models" / "blobs").iterdir()
        if path.read_bytes()[:4] == b"GGUF"
    )
    loaded = home(hosts, tmp_path).load(load(blob))
    assert loaded.model.weights == str(tmp_path / "models" / "blobs" / f"sha256-{blob}")
    assert (loaded.threads, loaded.shares, loaded.layers) == (3, [], 0)


def part(kind: PartKind, blob: str) -> ModelPart:
    return ModelPart(kind, "/elsewhere/part", blob, 1)


def test_its_parts_are_found_by_their_digests_too(hosts: Hosts, tmp_path: Path):
    builtin = BuiltinModel().model()
    assert builtin
    there = home(hosts, tmp_path)
    blobs = tmp_path / "models" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("sha256-" + "1" * 64)).write_text("Be kind.")
    system = part(PartKind.SYSTEM, "1" * 64)
    projector = part(PartKind.PROJECTOR, "2" * 64)
    (blobs / ("sha256-" + "2" * 64)).write_text("GGUF")
    found = there.load(load(builtin.blob, projector, system)).model.parts
    assert [each.kind for each in found] == [PartKind.PROJECTOR, PartKind.SYSTEM]
    assert [each.path for each in found] == [
        str(blobs / ("sha256-" + digit * 64)) for digit in "21"
    ]
    with pytest.raises(PronkError) as missing:
        there.load(load(builtin.blob, system, part(PartKind.ADAPTER, "3" * 64)))
    assert missing.value.code is Code.NOT_FOUND
    assert missing.value.message.startswith("a part of m:latest (adapter) is not in the model")


def test_the_built_in_model_is_everywhere_unless_it_is_switched_off(hosts: Hosts, tmp_path: Path):
    builtin = BuiltinModel().model()
    assert builtin
    there = home(hosts, tmp_path)
    assert there.load(load(builtin.blob)).model.weights == str(builtin.weights)
    hosts = Hosts(tmp_path / "again")
    with pytest.raises(PronkError):
        home(hosts, tmp_path, demo_model="off").load(load(builtin.blob))


@pytest.mark.parametrize("blob", [None, "0" * 64])
def test_a_model_that_is_not_there_is_said_to_be_missing_without_a_path(
    hosts: Hosts, tmp_path: Path, blob: str | None
):
    with pytest.raises(PronkError) as missing:
        home(hosts, tmp_path).load(load(blob))
    assert missing.value.code is Code.NOT_FOUND
    assert "m:latest is not in the model library" in missing.value.message
    assert str(tmp_path) not in missing.value.message


def test_a_link_that_leads_out_of_the_library_is_not_followed(hosts: Hosts, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("not for everybody")
    blobs = tmp_path / "models" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("sha256-" + "0" * 64)).symlink_to(secret)
    with pytest.raises(PronkError, match="is not in the model library"):
        home(hosts, tmp_path).load(load("0" * 64))
