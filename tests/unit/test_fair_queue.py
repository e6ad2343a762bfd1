"""Promises of the waiting room's order: fair by caller, whatever comes, leaves and is served."""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.limits import CallerClass
from pronk.scheduler.policies.classes import CallerWeights
from pronk.scheduler.policies.fairness import MOST_CHARGED, TURN, FairQueue, Ticket
from pronk.scheduler.policies.places import MOST_REMEMBERED

A, B, C = "a" * 64, "b" * 64, "c" * 64


class Room:
    """A queue, with requests that are named by the number of their arrival."""

    def __init__(self, **weights: float) -> None:
        self.queue = FairQueue(lambda caller: weights.get(caller, 1.0))
        self.count = 0

    def add(
        self, caller: str, digest: str = A, cost: int = 100, size: int = 1, *, resumed: bool = False
    ) -> Ticket:
        self.count += 1
        key = (f"{self.count:032x}", 2 if resumed else 1)
        return self.queue.add(key, caller, digest, cost, size, resumed=resumed)

    def add_all(self, callers: str, **fields: object) -> list[Ticket]:
        return [self.add(caller, **fields) for caller in callers]  # type: ignore[arg-type]

    def serve(self, digest: str = A) -> Ticket:
        """Gives a slot of a model to whoever's turn it is."""
        ticket = next(self.queue.waiting_for(digest))
        taken = self.queue.take(ticket.key)
        assert taken is ticket
        return ticket

    def serve_all(self, digest: str = A) -> str:
        return "".join(self.serve(digest).caller for _ in range(self.queue.count(digest)))

    def serve_any(self) -> Ticket:
        """Gives a worker to the model whose turn it is."""
        ticket = self.queue.heads()[0]
        self.queue.take(ticket.key)
        return ticket


def test_one_caller_is_served_in_order_of_arrival():
    room = Room()
    tickets = [room.add("x", cost=cost) for cost in (900, 1, 50)]
    assert [room.serve() for _ in tickets] == tickets


def test_the_first_request_of_another_comes_before_the_many_of_one():
    room = Room()
    room.add_all("x" * 500)
    for _ in range(20):
        room.serve()
    room.add("y")
    assert "y" in (room.serve().caller, room.serve().caller)


def test_callers_take_turns():
    room = Room()
    room.add_all("xxxxyyyyzzzz")
    assert room.serve_all() == "xyzxyzxyzxyz"


def test_turns_are_measured_in_work_and_not_in_requests():
    room = Room()
    room.add_all("xxx", cost=1000)
    room.add_all("y" * 30, cost=100)
    order = room.serve_all()
    assert order.startswith("x" + "y" * 10)
    assert order[11] == "x"


def test_a_weight_is_a_share():
    room = Room(x=3.0)
    room.add_all("x" * 300 + "y" * 300)
    served = [room.serve().caller for _ in range(400)]
    assert served.count("x") == pytest.approx(300, abs=2)


def test_what_is_cancelled_while_it_waits_costs_nothing():
    room = Room()
    cancelled = room.add_all("x" * 50)
    room.add_all("yyy")
    for ticket in cancelled:
        assert room.queue.remove(ticket.key) is ticket
    room.add("x")
    assert room.serve_all() == "yxyy"


def test_who_leaves_and_returns_is_not_forgiven():
    room = Room()
    room.add("x", cost=5000)
    room.add_all("yyy", cost=100)
    assert room.serve().caller == "x"
    room.add("x", cost=5000)
    assert room.serve_all() == "yyyx"


def test_an_empty_queue_has_no_history():
    room = Room()
    room.add("x", cost=5000)
    room.serve()
    room.add_all("xy")
    assert room.serve_all() == "xy"


def test_time_alone_on_one_model_is_not_held_against_a_caller_at_another():
    room = Room()
    room.add_all("y" * 500, digest=B)
    for _ in range(100):
        room.add("x", A, cost=1000)
        room.serve(A)
    room.serve(B)
    room.add("x", B)
    assert "x" in (room.serve(B).caller, room.serve(B).caller)


def test_models_take_turns_by_their_callers():
    room = Room()
    room.add_all("x" * 300, digest=A)
    room.add_all("x" * 300, digest=B)
    for _ in range(10):
        room.serve_any()
    room.add("y", C)
    served = [room.serve_any().digest for _ in range(200)]
    assert served.index(C) <= TURN / 100


def test_a_models_turn_is_longer_than_one_request():
    room = Room()
    room.add_all("x" * 200, digest=A)
    room.add_all("y" * 200, digest=B)
    served = "".join(room.serve_any().caller for _ in range(320))
    turns = [len(list(turn)) for _, turn in itertools.groupby(served)]
    assert all(turn == pytest.approx(TURN / 100, abs=1) for turn in turns[:-1])


def test_one_callers_models_take_turns_by_arrival():
    room = Room()
    tickets = [room.add("x", digest) for digest in (B, A, C, A, B)]
    assert [ticket.digest for ticket in room.queue.heads()] == [B, A, C]
    assert list(room.queue.in_order()) == tickets


def test_what_is_resumed_goes_first_costs_nothing_and_is_never_refused():
    room = Room()
    room.add_all("yx")
    again = [room.add("x", cost=9000, resumed=True) for _ in range(5)]
    assert room.queue.heads()[0] == again[0]
    assert [room.serve() for _ in again] == again
    assert room.serve_all() == "yx"
    room.add("x", resumed=True)
    assert room.queue.to_refuse(0, 0) is None


def test_a_bound_is_charged_as_what_it_is_at_most():
    room = Room()
    room.add_all("xx", cost=2**62)
    room.add_all("y" * 300, cost=MOST_CHARGED // 100)
    assert room.serve_all().index("x", 1) <= 102


def test_of_callers_who_left_only_so_many_are_remembered():
    room = Room()
    blocked = room.add("blocked")
    for number in range(3 * MOST_REMEMBERED):
        # Each passes the first one, which no replica can take yet.
        room.queue.take(room.add(f"c{number}").key)
    assert len(room.queue._lines[A].places._left) == MOST_REMEMBERED
    assert len(room.queue._host._left) == MOST_REMEMBERED
    assert room.serve() is blocked
    assert not room.queue._lines
    assert not room.queue._host._left


def test_the_newest_request_of_the_heaviest_caller_is_refused():
    room = Room()
    heavy = room.add_all("xxxx", cost=1)
    room.add("z", cost=10**6)
    room.add_all("yy")
    assert room.queue.to_refuse(7, 100) is None
    assert room.queue.to_refuse(6, 100) is heavy[-1]


def test_a_weight_counts_in_the_waiting_room_too():
    room = Room(x=4.0)
    room.add_all("xxxx")
    light = room.add_all("yy")
    assert room.queue.to_refuse(5, 100) is light[-1]


def test_of_callers_with_as_much_each_the_one_who_came_last_is_refused():
    room = Room()
    last = room.add_all("xyz")[-1]
    assert room.queue.to_refuse(2, 100) is last


def test_where_bytes_are_short_who_holds_most_of_them_is_refused():
    room = Room()
    room.add_all("x" * 10, size=1)
    large = [room.add("y", size=50), room.add("y", size=1)]
    assert room.queue.to_refuse(100, 50) is large[-1]
    assert room.queue.size == 61


def test_a_request_waits_once():
    room = Room()
    ticket = room.add("x")
    with pytest.raises(ValueError, match="already"):
        room.queue.add(ticket.key, "x", A, 1, 1)
    assert len(room.queue) == 1


def test_what_is_not_there_is_not_taken():
    room = Room()
    assert room.queue.remove(("0" * 32, 1)) is None
    assert room.queue.take(("0" * 32, 1)) is None
    assert list(room.queue.waiting_for(A)) == []
    assert room.queue.oldest_of("x") is None


WEIGHTS = {"w": 0.5, "x": 1.0, "y": 2.0, "z": 7.0}
requests = st.tuples(st.sampled_from("wxyz"), st.integers(0, 3 * MOST_CHARGED))


def charge(caller: str, cost: int) -> float:
    return max(1, min(cost, MOST_CHARGED)) / WEIGHTS[caller]


@given(
    st.lists(st.one_of(requests, st.none()), max_size=120),
    st.lists(requests, min_size=1, max_size=20),
)
@settings(deadline=None)
def test_of_two_who_both_wait_neither_is_ahead_by_more_than_one_request_each(
    steps: list[tuple[str, int] | None], first: list[tuple[str, int]]
):
    """None stands for a slot that becomes free. Shares are measured over every stretch of time in
    which both wait, beginning with the one that is still under way.
    """
    room = Room(**WEIGHTS)
    for caller, cost in first:
        room.add(caller, cost=cost)
    waiting: dict[str, int] = defaultdict(int)
    for ticket in room.queue.in_order():
        waiting[ticket.caller] += 1
    given_: dict[frozenset[str], dict[str, float]] = {}
    """Since both of a pair wait."""
    asked = [step for step in [*first, *steps] if step]
    largest = {
        name: max((charge(name, cost) for caller, cost in asked if caller == name), default=0)
        for name in WEIGHTS
    }
    pairs = [frozenset(pair) for pair in ("wx", "wy", "wz", "xy", "xz", "yz")]
    for step in [*steps, *([None] * 20)]:
        for pair in pairs:
            if all(waiting[caller] for caller in pair):
                given_.setdefault(pair, dict.fromkeys(pair, 0.0))
            else:
                given_.pop(pair, None)
        if step:
            room.add(step[0], cost=step[1])
            waiting[step[0]] += 1
        elif len(room.queue):
            ticket = room.serve()
            waiting[ticket.caller] -= 1
            for pair, work in given_.items():
                if ticket.caller in pair:
                    work[ticket.caller] += charge(ticket.caller, ticket.cost)
                    one, other = pair
                    bound = largest[one] + largest[other] + 1e-6
                    assert abs(work[one] - work[other]) <= bound


@st.composite
def histories(draw: st.DrawFn) -> tuple[Room, random.Random]:
    """A room after many arrivals, cancellations and turns, some of them out of order."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    room = Room(**WEIGHTS)
    for _ in range(draw(st.integers(0, 150))):
        keys = list(room.queue._tickets)
        match chance.choice(["add", "add", "add", "take", "remove", "serve"]):
            case "take" if keys:
                room.queue.take(chance.choice(keys))
            case "remove" if keys:
                room.queue.remove(chance.choice(keys))
            case "serve" if keys:
                room.serve_any()
            case _:
                room.add(
                    chance.choice("wxyz"),
                    chance.choice([A, B, C]),
                    chance.randrange(3 * MOST_CHARGED),
                    chance.randrange(1000),
                    resumed=chance.random() < 0.1,
                )
    return room, chance


@given(histories())
@settings(deadline=None)
def test_the_order_that_is_shown_is_the_order_of_turns(history: tuple[Room, random.Random]):
    room, _ = history
    shown = {digest: list(room.queue.waiting_for(digest)) for digest in (A, B, C)}
    whole = list(room.queue.in_order())
    assert {ticket.key for ticket in whole} == set(room.queue._tickets)
    assert len(whole) == len(room.queue)
    assert room.queue.heads()[:1] == whole[:1]
    for digest, tickets in shown.items():
        # Within a model the whole order agrees with the model's own, and that with what happens.
        assert [ticket for ticket in whole if ticket.digest == digest] == tickets
        assert room.queue.count(digest) == len(tickets)
        assert [room.serve(digest) for _ in tickets] == tickets
    assert room.queue.size == 0
    assert not room.queue._accounts


@given(histories(), st.integers(0, 50), st.integers(0, 20_000))
@settings(deadline=None)
def test_refusing_ends_within_the_bounds_and_never_with_whoever_takes_less(
    history: tuple[Room, random.Random], most: int, most_bytes: int
):
    room, _ = history
    resumed = sum(ticket.resumed for ticket in room.queue.in_order())
    while ticket := room.queue.to_refuse(most, most_bytes):
        waiting = [t for t in room.queue.in_order() if not t.resumed]
        over = len(room.queue) - resumed > most
        held = dict.fromkeys(WEIGHTS, 0.0)
        for other in waiting:
            held[other.caller] += (1 if over else other.size) / WEIGHTS[other.caller]
        assert held[ticket.caller] == pytest.approx(max(held.values()))
        assert ticket.arrival == max(t.arrival for t in waiting if t.caller == ticket.caller)
        room.queue.remove(ticket.key)
    assert len(room.queue) - resumed <= most


def test_an_operation_costs_about_the_same_however_many_wait():
    """A ratio in one run: what looks at everything would take a hundred times as long."""

    def seconds(waiting: int) -> float:
        room = Room()
        for number in range(waiting):
            room.add(f"c{number}" if number % 2 else "heavy", cost=number % 500)
        best = float("inf")
        for _ in range(5):
            begun = time.thread_time()
            for _ in range(200):
                ticket = room.add("new")
                room.queue.to_refuse(10**6, 10**9)
                room.queue.heads()
                room.queue.remove(ticket.key)
                room.add("heavy")
                room.queue.take(room.queue.heads()[0].key)
            best = min(best, time.thread_time() - begun)
        return best

    assert seconds(20_000) < 20 * seconds(200)


def test_a_class_gives_its_weight_to_those_it_names_and_else_by_its_patterns():
    weights = CallerWeights(
        {
            "batch": CallerClass(weight=0.25, callers=["anonymous@10.0.*", "night-*"]),
            "people": CallerClass(weight=4, callers=["anonymous@10.0.0.7", "*@10.0.1.*"]),
        }
    )
    assert weights.of("anonymous@10.0.0.7") == 4
    assert weights.of("anonymous@10.0.0.8") == 0.25
    assert weights.of("anonymous@10.0.1.8") == 0.25  # the first pattern
    assert weights.of("alice@10.0.1.8") == 4
    assert weights.of("alice") == 1
