"""Workers of other hosts: they join over tcp, as workers only, and heartbeats tell of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.keys import ClientKeys, client_keys
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import PeerHeartbeat, Refused, Role, WhoAreYou
from pronk.protocol.messages.generation import Generate, Lost
from pronk.protocol.messages.placement import Load, LoadFailed, Unload
from pronk.protocol.messages.status import ListRunning
from pronk.scheduler import health
from support.keys import Hosts
from support.server import free_port
from support.stage import PATIENCE, A, Peer, Stage, StageMaker


@dataclass
class Site:
    """A scheduler that listens on tcp, and the keys of a host that may join it."""

    stage: Stage
    join: tuple[str, ClientKeys]

    def worker(self, **hello: Any) -> Peer:
        return self.stage.add(Role.WORKER, join=self.join, **hello)

    def known(self, peer: Peer) -> Any:
        return self.stage.scheduler._fleet.workers.get(peer.id)


@pytest.fixture
async def site(make_stage: StageMaker, hosts: Hosts) -> Site:
    address = f"127.0.0.2:{free_port()}"
    stage = make_stage(listen_tcp=address, keys=hosts.server)
    return Site(stage, (f"tcp://{address}", client_keys(hosts.client("box"))))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_worker_of_another_host_gets_its_model_and_its_requests(site: Site):
    worker, frontend = site.worker(), site.stage.frontend()
    header = frontend.generate(reply_to_tcp="tcp://0.0.0.0:11501")
    await worker.load()
    assert await worker.expect(Generate) == (header, b"body")
    worker.release(header)


async def test_it_is_never_watched_or_killed_by_a_pid_whatever_it_says_of_itself(site: Site):
    worker = site.worker()  # says truly that its process is here
    await until(lambda: site.known(worker))
    assert site.known(worker).remote
    assert site.known(worker).pidfd is None
    site.stage.scheduler._dispatcher.kill(site.known(worker), "the test says so")
    assert (await worker.expect(Unload)).reason == "the test says so"
    assert psutil.Process(worker.process.pid).is_running()
    await until(lambda: site.known(worker) is None)


async def test_one_that_falls_silent_is_given_up_and_its_requests_are_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    worker, frontend = site.worker(), site.stage.frontend()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    # Only now, or a machine that stands still for as long would have it given up before its time.
    monkeypatch.setattr(health, "SILENCE", 2.0)
    monkeypatch.setattr(health, "UNREACHABLE", 60.0)
    lost: Lost = await frontend.expect(Lost)
    assert (lost.request, lost.attempt) == (header.request, 1)
    assert site.known(worker) is None
    # If it was only stopped, it hears that it has to go, and that nobody knows it any more.
    assert isinstance(await worker.expect(Unload), Unload)
    worker.send(PeerHeartbeat())
    await worker.expect(WhoAreYou)


async def test_one_whose_connection_breaks_is_given_up_sooner(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    worker, frontend = site.worker(), site.stage.frontend()
    header = frontend.generate()
    await worker.load()
    await worker.expect(Generate)
    monkeypatch.setattr(health, "SILENCE", 60.0)
    monkeypatch.setattr(health, "UNREACHABLE", 0.5)
    worker.dealer.close()
    lost: Lost = await frontend.expect(Lost)
    assert lost.request == header.request
    assert site.known(worker) is None


async def test_a_network_that_breaks_during_a_load_says_nothing_about_the_model(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    worker, frontend = site.worker(), site.stage.frontend()
    header = frontend.generate()
    await worker.expect(Load)
    monkeypatch.setattr(health, "SILENCE", 1.0)
    here = site.stage.worker()  # beside the one that is not heard of any more
    await here.load()
    assert (await here.expect(Generate))[0] == header
    assert frontend.received == []


async def test_a_model_that_its_host_lacks_is_loaded_elsewhere(site: Site):
    remote = site.worker()
    await until(lambda: site.known(remote))
    frontend = site.stage.frontend()
    header = frontend.generate()
    await remote.expect(Load)
    remote.send(LoadFailed(A, Failure(Code.NOT_FOUND, "a:latest is not in the library here")))
    await remote.expect(Unload)
    remote.dealer.close()
    successor = site.worker()  # of the same host
    await until(lambda: site.known(successor))
    here = site.stage.worker()
    await here.load()
    assert (await here.expect(Generate))[0] == header
    assert successor.received == []
    assert frontend.received == []


async def test_a_frontend_cannot_join_from_another_host(site: Site):
    stranger = site.stage.add(Role.FRONTEND, join=site.join)
    refused: Refused = await stranger.expect(Refused)
    assert "only workers" in refused.failure.message
    assert site.stage.scheduler._fleet.frontends == {}


async def test_nobody_takes_the_place_of_a_peer_of_this_host(site: Site):
    frontend, worker = site.stage.frontend(), site.stage.worker()
    await until(lambda: site.known(worker))
    counts = site.stage.scheduler._odd.counts
    for victim in (frontend, worker):
        impostor = Peer(site.stage.state, victim.role, victim.process, site.join, victim.id)
        before = counts["impostor"]
        impostor.hello()
        impostor.send(ListRunning("9" * 32))
        await until(lambda before=before: counts["impostor"] == before + 2)
        assert impostor.received == []
        impostor.dealer.close()
    header = frontend.generate()
    await worker.load()
    assert (await worker.expect(Generate))[0] == header
    assert not site.known(worker).remote


async def test_tcp_without_keys_is_refused_at_the_start(make_stage: StageMaker, tmp_path: Any):
    with pytest.raises(PronkError, match="pronk keys create server"):
        make_stage(listen_tcp=f"127.0.0.2:{free_port()}", keys=tmp_path)


async def test_keys_that_others_can_read_are_refused_at_the_start(
    make_stage: StageMaker, hosts: Hosts
):
    (hosts.server / "server.secret").chmod(0o644)
    with pytest.raises(PronkError, match="can be read by others"):
        make_stage(listen_tcp=f"127.0.0.2:{free_port()}", keys=hosts.server)


async def test_a_port_that_is_taken_is_told_with_the_setting(site: Site, hosts: Hosts):
    taken = site.join[0].removeprefix("tcp://")
    with pytest.raises(PronkError, match=f"PRONK_LISTEN_TCP=tcp://{taken}.*in use"):
        Stage(str(hosts.root), listen_tcp=taken, keys=hosts.server)


async def test_one_of_another_version_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    import support.stage

    monkeypatch.setattr(support.stage, "VERSION", 999)
    worker = site.worker()
    refused: Refused = await worker.expect(Refused)
    assert "version 999" in refused.failure.message
    assert site.stage.scheduler._odd.counts["refused"] == 1
    assert any(record.levelno == logging.WARNING for record in caplog.records)
