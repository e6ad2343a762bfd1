"""Who asks what, and when: arrivals that hosts see."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from .world import World

ARRIVALS = "requests come at random, for some models more often than for others"
BURSTS = "quiet, and every two minutes a crowd that wants one model"
HEAVY = "one client sends 500 requests at once, the others one now and then"
TALKS = "conversations, each of which grows by a question and an answer at a time"
EXCHANGE = "more models in turn than there is memory for"


def _later(world: World, mean: float, event: Callable[[], None]) -> None:
    """Has something happen again and again, at random times."""

    def happen() -> None:
        event()
        world.at(world.now + world.random.expovariate(1 / mean), happen)

    world.at(world.now + world.random.expovariate(1 / mean), happen)


def _popular(world: World, digests: Sequence[str]) -> str:
    """A model: the first is asked for most often, each other one less (Zipf's law)."""
    weights = [1 / (place + 1) for place in range(len(digests))]
    return world.random.choices(digests, weights)[0]


def arrivals(world: World, rate: float) -> None:
    """`rate` requests in a second from twenty callers, for models of different popularity."""
    digests = list(world.models)

    def ask() -> None:
        world.ask(
            f"caller {world.random.randrange(20)}",
            _popular(world, digests),
            world.random.randrange(50, 2000),
            world.random.randrange(20, 500),
        )

    _later(world, 1 / rate, ask)


def bursts(world: World, size: int) -> None:
    """`size` requests for one model within a second, every two minutes, beside a few for others."""
    digests = list(world.models)

    def crowd() -> None:
        for number in range(size):
            world.ask(f"crowd {number % 50}", digests[0], 300, world.random.randrange(50, 300))
        world.at(world.now + 120, crowd)

    world.at(10, crowd)
    _later(world, 5.0, lambda: world.ask("other", _popular(world, digests[1:]), 300, 200) and None)


def heavy(world: World, size: int) -> None:
    """One caller's `size` requests at once, every five minutes; nine others ask now and then."""
    digests = list(world.models)

    def flood() -> None:
        for _ in range(size):
            world.ask("heavy", digests[0], 500, 300)
        world.at(world.now + 300, flood)

    world.at(5, flood)
    for number in range(9):
        caller = f"light {number}"
        _later(world, 10.0, lambda caller=caller: world.ask(caller, digests[0], 200, 100) and None)


def talks(world: World, number: int) -> None:
    """So many conversations; each goes on some seconds after its last answer."""
    digests = list(world.models)

    def talk(caller: str) -> None:
        digest = _popular(world, digests)
        chain: list[bytes] = [hashlib.blake2b(digest.encode(), digest_size=16).digest()]
        turns = world.random.randrange(3, 20)

        def say() -> None:
            for _ in range(2 if len(chain) > 1 else 1):
                chain.append(hashlib.blake2b(chain[-1] + caller.encode(), digest_size=16).digest())
            tokens = 200 * len(chain)
            request = world.ask(caller, digest, tokens, 150, chain=tuple(chain))
            world.at(world.now + 1, lambda: wait(request))

        def wait(request: object) -> None:
            if request in world.waiting.values() or any(
                request in worker.running.values() for worker in world.workers.values()
            ):
                world.at(world.now + 1, lambda: wait(request))
            elif len(chain) < 2 * turns:
                world.at(world.now + world.random.uniform(2, 20), say)
            else:
                talk(caller)

        world.at(world.now + world.random.uniform(0, 30), say)

    for index in range(number):
        talk(f"caller {index}")


def exchange(world: World, rate: float) -> None:
    """All models in turn, as often: the worst for a host that can hold only some of them."""
    digests = list(world.models)
    turn = [0]

    def ask() -> None:
        turn[0] += 1
        world.ask(f"caller {turn[0] % 5}", digests[turn[0] % len(digests)], 200, 200)

    _later(world, 1 / rate, ask)
