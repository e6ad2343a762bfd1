"""Channels over tcp carry messages between hosts that know each other, and for nobody else."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq

from pronk.protocol import channels, gate, keys
from pronk.protocol.channels import Dealer, Router
from pronk.protocol.codec import join
from pronk.protocol.gate import Gate
from pronk.protocol.keys import ClientKeys, client_keys, server_keys
from pronk.protocol.messages.fleet import PeerHeartbeat
from support.keys import Hosts
from support.server import free_port

PATIENCE = 60


class End:
    """A listening router, and all that it heard."""

    def __init__(self, directory: Path, port: int | None = None) -> None:
        self.gate = Gate(server_keys(directory), directory)
        self.endpoint = f"tcp://127.0.0.1:{port or free_port()}"
        self.heard: list[tuple[str, Any]] = []
        self.router = Router(self.endpoint, self._on_message, gate=self.gate)

    def _on_message(self, peer: str, message: Any, body: bytes) -> None:
        self.heard.append((peer, message))
        self.router.send(peer, message)

    def close(self) -> None:
        self.router.close()
        self.gate.close()


class Guest:
    """A connecting dealer, and all that it heard."""

    def __init__(self, endpoint: str, own: ClientKeys, **options: Any) -> None:
        self.heard: list[Any] = []
        self.dealer = Dealer(
            endpoint, "guest", lambda message, body: self.heard.append(message), keys=own, **options
        )


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def answers_a_guest(end: End, hosts: Hosts) -> None:
    """Whoever has a key that is known is heard, and is the first one."""
    guest = Guest(end.endpoint, client_keys(hosts.client("box")))
    guest.dealer.send(PeerHeartbeat(1))
    await until(lambda: guest.heard)
    assert end.heard == [("guest", PeerHeartbeat(1))]
    guest.dealer.close()


async def test_messages_travel_both_ways_between_hosts_that_know_each_other(hosts: Hosts):
    end = End(hosts.server)
    await answers_a_guest(end, hosts)
    end.close()


async def test_an_unknown_key_is_refused_counted_and_let_in_once_its_file_is_there(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
):
    end = End(hosts.server)
    stranger = hosts.client("stranger", known=False)
    guest = Guest(end.endpoint, client_keys(stranger))
    guest.dealer.send(PeerHeartbeat(1))
    await until(lambda: end.gate.log.counts["unknown key"] > 0)
    await until(lambda: "the key is not known there" in caplog.text)
    assert end.heard == []
    hosts.introduce(stranger)
    await until(lambda: guest.heard)
    guest.dealer.close()
    end.close()


async def test_a_key_that_is_taken_away_lets_nobody_in_any_more(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gate, "_REREAD_SECONDS", 0.0)
    end = End(hosts.server)
    box = hosts.client("box")
    first = Guest(end.endpoint, client_keys(box))
    first.dealer.send(PeerHeartbeat(1))
    await until(lambda: first.heard)
    first.dealer.close()
    (hosts.server / "box.public").unlink()
    second = Guest(end.endpoint, client_keys(box))
    second.dealer.send(PeerHeartbeat(2))
    await until(lambda: end.gate.log.counts["unknown key"] > 0)
    assert end.heard == [("guest", PeerHeartbeat(1))]
    second.dealer.close()
    end.close()


async def test_a_connection_without_curve_gets_nothing_through(hosts: Hosts):
    end = End(hosts.server)
    with zmq.Context() as context, context.socket(zmq.DEALER) as plain:
        plain.setsockopt(zmq.LINGER, 0)
        plain.connect(end.endpoint)
        plain.send(join(PeerHeartbeat(1)))
        await until(lambda: end.gate.log.counts["refused connection"] > 0)
    assert end.heard == []
    end.close()


async def test_bytes_that_are_no_zeromq_are_refused_and_others_served(hosts: Hosts):
    end = End(hosts.server)
    host, port = end.endpoint.removeprefix("tcp://").split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(200), b"\xff" + bytes(8) + b"\x7f"):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        await writer.drain()
        writer.close()
    await answers_a_guest(end, hosts)
    end.close()


async def test_a_wrong_server_key_never_connects_and_the_log_says_so(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
):
    end = End(hosts.server)
    box = hosts.client("box")
    (box / "server.public").unlink()
    keys.create(hosts.root / "other", "server")
    (hosts.root / "other" / "server.public").rename(box / "server.public")
    stuck = asyncio.Event()
    guest = Guest(end.endpoint, client_keys(box), on_stuck=stuck.set, patience=0.5)
    guest.dealer.send(PeerHeartbeat(1))
    async with asyncio.timeout(PATIENCE):
        await stuck.wait()
    await until(lambda: end.gate.log.counts["refused connection"] > 0)
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert any(line.startswith("no connection") and end.endpoint in line for line in lines)
    assert end.heard == []
    guest.dealer.close()
    end.close()


async def test_a_connection_that_came_about_after_a_failed_handshake_is_left_alone(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(channels, "_CONNECT_AGAIN_SECONDS", 3600)
    with socket.create_server(("127.0.0.1", 0)) as dying:
        port = dying.getsockname()[1]
        own = client_keys(hosts.client("box"))
        guest = Guest(f"tcp://127.0.0.1:{port}", own)
        connection, _ = await asyncio.to_thread(dying.accept)
        connection.close()
        await until(lambda: guest.dealer._reconnecting)
    end = End(hosts.server, port)
    guest.dealer.send(PeerHeartbeat(1))
    await until(lambda: guest.heard)
    await until(lambda: not guest.dealer._reconnecting)
    guest.dealer._connect_again()  # had its time come in the same moment
    guest.dealer.send(PeerHeartbeat(2))
    await until(lambda: len(guest.heard) == 2)
    assert caplog.text.count("box connects over tcp") == 1
    guest.dealer.close()
    end.close()


async def test_nobody_there_is_told_in_the_log(hosts: Hosts, caplog: pytest.LogCaptureFixture):
    nowhere = f"tcp://127.0.0.1:{free_port()}"
    guest = Guest(nowhere, client_keys(hosts.client("box")), patience=0.2)
    guest.dealer.send(PeerHeartbeat(1))
    await until(lambda: f"{nowhere}: nobody there takes a message" in caplog.text)
    guest.dealer.close()
