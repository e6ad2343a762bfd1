"""Key files: made private, read with care, and told apart by whose they are."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
import zmq.auth

from pronk.protocol import keys
from pronk.protocol.errors import PronkError
from support.keys import Hosts


def test_a_secret_is_private_from_its_first_moment_and_zeromq_reads_it(tmp_path: Path):
    secret, public = keys.create(tmp_path / "new", "box")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    pair = zmq.auth.load_certificate(secret)
    assert pair[1] is not None
    assert zmq.curve_public(pair[1]) == pair[0]
    assert zmq.auth.load_certificate(public) == (pair[0], None)


def test_keys_are_never_overwritten(tmp_path: Path):
    secret, public = keys.create(tmp_path, "box")
    before = secret.read_bytes(), public.read_bytes()
    with pytest.raises(PronkError, match=re.escape("box.secret is there already")):
        keys.create(tmp_path, "box")
    assert (secret.read_bytes(), public.read_bytes()) == before


@pytest.mark.parametrize("name", ["", "../box", "a/b", ".hidden", "a" * 65, "a b", "a\n"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str):
    with pytest.raises(PronkError, match="no name for keys"):
        keys.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_each_side_finds_its_keys(hosts: Hosts):
    box = keys.client_keys(hosts.client("box"))
    server = keys.server_keys(hosts.server)
    assert box.server == server.public
    assert keys.known_clients(hosts.server) == {box.own.public: "box"}
    assert server.secret.decode() not in repr(server)


def test_what_a_joining_host_lacks_is_said(hosts: Hosts, tmp_path: Path):
    with pytest.raises(PronkError, match="no keys of this host; `pronk keys create NAME`"):
        keys.client_keys(tmp_path / "nowhere")
    box = hosts.client("box")
    (box / "server.public").unlink()
    with pytest.raises(PronkError, match=r"server\.public is not there; copy it from the server"):
        keys.client_keys(box)
    keys.create(box, "another")
    with pytest.raises(PronkError, match="2 pairs of keys; keep one of them"):
        keys.client_keys(box)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 300,
        b"public-key",
        b'public-key = "short"',
        b"x" * 5000,
        b'public-key = "' + b'"' * 40 + b'"',
    ],
)
def test_a_file_that_is_no_key_is_refused_or_left_out(hosts: Hosts, content: bytes):
    (hosts.server / "odd.public").write_bytes(content)
    box = hosts.client("box")
    assert list(keys.known_clients(hosts.server).values()) == ["box"]
    (box / "server.public").write_bytes(content)
    with pytest.raises(PronkError, match="is no key file"):
        keys.client_keys(box)


def test_a_public_file_does_not_pass_for_a_secret_one(hosts: Hosts):
    (hosts.server / "server.secret").unlink()
    (hosts.server / "server.public").rename(hosts.server / "server.secret")
    with pytest.raises(PronkError, match="has no secret key in it"):
        keys.server_keys(hosts.server)
