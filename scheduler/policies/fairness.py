"""Whose waiting request is next: weighted fair by caller, then by arrival. Pure.

Start-time fair queueing. Each caller who waits has a place in virtual time: the work, divided by
the caller's weight, that it has been given. The least place is served next, and what is served
moves its caller back by its estimated cost. So between any two callers who both wait, the work
given differs by no more than one request each, however many requests either of them has; who comes
new begins at the place of whoever is next, and so waits for one request of each other caller at
most. What is cancelled while it waits costs nothing, and an empty queue has no history.

Places are kept per model, where callers compete for slots, and once for the whole host, where
models compete for workers and callers are compared by whole turns of `TURN` tokens. One for both
would let what a caller did alone at one model be held against it at another one, for as long as
the callers there take to catch up.

What is resumed (a later attempt, whose worker died) had its turn: it goes before all others, is
charged nothing, and is never refused, because its client may have half of an answer.

Every operation costs some dictionary look-ups and a binary search; the sorted lists move one
pointer for each caller behind the changed one, which for 10,000 callers is about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from .places import Places, Ranking

MOST_CHARGED = 16384
"""Most tokens that one request is charged with, and so by how much a caller's place can lie behind
the next one's. `num_predict` is a bound and not a promise: whoever sets a million waits as long as
a long answer takes, and not as long as a million tokens would."""

TURN = 8192
"""Tokens of work, for a weight of 1, within which models take turns by arrival: to exchange a model
costs as much as several answers, so that callers should not alternate request by request there."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A waiting request, as far as its order is concerned."""

    key: tuple[str, int]
    """Request and attempt."""
    caller: str
    digest: str
    """The model that it waits for."""
    cost: int
    """Estimated work in tokens."""
    size: int
    """Bytes that it holds while it waits."""
    arrival: int
    """Its number in the order of arrival."""
    resumed: bool = False


@dataclass(slots=True)
class _Account:
    """A caller with something waiting."""

    weight: float
    tickets: dict[tuple[str, int], Ticket] = field(default_factory=dict[tuple[str, int], Ticket])
    """In the order of arrival."""
    size: int = 0

    def work(self, ticket: Ticket) -> float:
        return max(1, min(ticket.cost, MOST_CHARGED)) / self.weight


class _Line:
    """What waits for one model."""

    __slots__ = ("_accounts", "count", "flows", "places", "resumed")

    def __init__(self, accounts: dict[str, _Account]) -> None:
        self._accounts = accounts
        self.flows: dict[str, dict[tuple[str, int], Ticket]] = {}
        """By caller, in the order of arrival."""
        self.resumed: dict[tuple[str, int], Ticket] = {}
        self.places = Places()
        self.count = 0

    @property
    def head(self) -> Ticket:
        """Whose turn it is. A line is never empty."""
        if self.resumed:
            return next(iter(self.resumed.values()))
        return next(iter(self.flows[self.places.first or ""].values()))

    def add(self, ticket: Ticket) -> None:
        self.count += 1
        if ticket.resumed:
            self.resumed[ticket.key] = ticket
            return
        flow = self.flows.get(ticket.caller)
        if flow is None:
            flow = self.flows[ticket.caller] = {}
            self.places.enter(ticket.caller, ticket.arrival)
        flow[ticket.key] = ticket

    def remove(self, ticket: Ticket) -> None:
        self.count -= 1
        if ticket.resumed:
            del self.resumed[ticket.key]
            return
        flow = self.flows[ticket.caller]
        del flow[ticket.key]
        if not flow:
            del self.flows[ticket.caller]
            self.places.leave(ticket.caller)

    def in_order(self) -> Iterator[Ticket]:
        """The order of turns, should nobody come or leave."""
        yield from self.resumed.values()
        yield from self.fair()

    def fair(self) -> Iterator[Ticket]:
        """The same without what is resumed."""
        turns = self.places.entries()  # sorted, and so a heap
        flows = {caller: iter(flow.values()) for caller, flow in self.flows.items()}
        following = {caller: next(flow) for caller, flow in flows.items()}
        while turns:
            place, arrival, caller = turns[0]
            ticket = following[caller]
            yield ticket
            if after := next(flows[caller], None):
                following[caller] = after
                work = self._accounts[caller].work(ticket)
                heapreplace(turns, (place + work, arrival, caller))
            else:
                heappop(turns)


class FairQueue:
    """The waiting room. `weight_of` gives a caller's weight, which is more than 0.

    Iterators show the queue as it was when they began: finish with one, or make a list of what you
    need, before you change the queue.
    """

    def __init__(self, weight_of: Callable[[str], float] = lambda caller: 1.0) -> None:
        self._weight_of = weight_of
        self._tickets: dict[tuple[str, int], Ticket] = {}
        self._accounts: dict[str, _Account] = {}
        self._lines: dict[str, _Line] = {}
        self._host = Places()
        self._by_number = Ranking()
        self._by_size = Ranking()
        self._arrivals = 0
        self._resumed = 0
        self.size = 0
        """Bytes that all of it holds."""

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, key: object) -> bool:
        return key in self._tickets

    def add(
        self,
        key: tuple[str, int],
        caller: str,
        digest: str,
        cost: int,
        size: int,
        *,
        resumed: bool = False,
    ) -> Ticket:
        """Queues a request. Raises ValueError when it waits already."""
        if key in self._tickets:
            raise ValueError(f"request {key} waits already")
        self._arrivals += 1
        ticket = Ticket(key, caller, digest, cost, size, self._arrivals, resumed)
        self._tickets[key] = ticket
        self._resumed += resumed
        self.size += size
        if not resumed:
            account = self._accounts.get(caller)
            if account is None:
                account = self._accounts[caller] = _Account(self._weight_of(caller))
                self._host.enter(caller, ticket.arrival)
            account.tickets[key] = ticket
            account.size += size
            self._rank(caller, account)
        line = self._lines.get(digest)
        if line is None:
            line = self._lines[digest] = _Line(self._accounts)
        line.add(ticket)
        return ticket

    def remove(self, key: tuple[str, int]) -> Ticket | None:
        """Takes a request out that is not served, at no cost; None where it is not here."""
        ticket = self._tickets.pop(key, None)
        if ticket is None:
            return None
        self.size -= ticket.size
        self._resumed -= ticket.resumed
        line = self._lines[ticket.digest]
        line.remove(ticket)
        if not line.count:
            del self._lines[ticket.digest]
        if not ticket.resumed:
            account = self._accounts[ticket.caller]
            del account.tickets[key]
            account.size -= ticket.size
            if account.tickets:
                self._rank(ticket.caller, account)
            else:
                del self._accounts[ticket.caller]
                self._by_number.drop(ticket.caller)
                self._by_size.drop(ticket.caller)
                self._host.leave(ticket.caller)
        if not self._tickets:
            self._host = Places()
        return ticket

    def take(self, key: tuple[str, int]) -> Ticket | None:
        """Takes a request out that is served now, and charges its caller."""
        ticket = self._tickets.get(key)
        if ticket is None:
            return None
        if not ticket.resumed:
            account = self._accounts[ticket.caller]
            work, most = account.work(ticket), MOST_CHARGED / account.weight
            self._lines[ticket.digest].places.charge(ticket.caller, work, most)
            self._host.charge(ticket.caller, work, most)
        return self.remove(key)

    def count(self, digest: str) -> int:
        """How many requests wait for a model."""
        line = self._lines.get(digest)
        return line.count if line else 0

    def waiting_for(self, digest: str) -> Iterator[Ticket]:
        """What waits for one model, in the order of turns: the first n get the next n slots."""
        line = self._lines.get(digest)
        return line.in_order() if line else iter(())

    def heads(self) -> list[Ticket]:
        """Of each model the request whose turn it is, in the order of the models' turns."""

        def turn(ticket: Ticket) -> tuple[float, int]:
            place = -1.0 if ticket.resumed else self._host.of(ticket.caller) // TURN
            return place, ticket.arrival

        return sorted((line.head for line in self._lines.values()), key=turn)

    def in_order(self) -> Iterator[Ticket]:
        """Everything in the order of turns, should nobody come or leave: what is resumed first."""
        resumed = [ticket for line in self._lines.values() for ticket in line.resumed.values()]
        yield from sorted(resumed, key=lambda ticket: ticket.arrival)
        if len(self._lines) == 1:
            yield from next(iter(self._lines.values())).fair()
            return
        lines = [line.fair() for line in self._lines.values()]
        places = {caller: self._host.of(caller) for caller in self._accounts}
        heads: dict[str, list[tuple[int, int, Ticket]]] = {caller: [] for caller in self._accounts}
        """Of each caller the requests whose turn it is at some model, a heap by arrival."""
        turns: list[tuple[float, int, str]] = []
        """A heap of callers. What has changed since is skipped, and stands there again."""

        def put(index: int) -> str | None:
            if head := next(lines[index], None):
                heappush(heads[head.caller], (head.arrival, index, head))
            return head and head.caller

        def line_up(caller: str | None) -> None:
            if caller is not None and heads[caller]:
                heappush(turns, (places[caller] // TURN, heads[caller][0][0], caller))

        for index in range(len(lines)):
            put(index)
        for caller in heads:
            line_up(caller)
        while turns:
            turn, arrival, caller = heappop(turns)
            own = heads[caller]
            if not own or (places[caller] // TURN, own[0][0]) != (turn, arrival):
                continue
            _, index, ticket = heappop(own)
            yield ticket
            places[caller] += self._accounts[caller].work(ticket)
            following = put(index)
            line_up(caller)
            if following != caller:
                line_up(following)

    def oldest_of(self, caller: str) -> Ticket | None:
        """What a caller has been waiting for the longest, leaving aside what is resumed."""
        account = self._accounts.get(caller)
        return next(iter(account.tickets.values())) if account else None

    def to_refuse(self, most: int, most_bytes: int) -> Ticket | None:
        """What has to go where more waits than `most` requests or `most_bytes` bytes, else None.

        The newest request of the heaviest caller: the one who holds most of what is short, places
        or bytes, for its weight. Cost is no measure here: a full room is not emptied by refusing
        one long request, and who waits with a single one is not who filled it.
        """
        ranking = None
        if len(self._tickets) - self._resumed > most:
            ranking = self._by_number
        elif self.size > most_bytes:
            ranking = self._by_size
        heaviest = ranking.last if ranking else None
        if heaviest is None:
            return None
        return next(reversed(self._accounts[heaviest].tickets.values()))

    def _rank(self, caller: str, account: _Account) -> None:
        newest = next(reversed(account.tickets.values())).arrival
        self._by_number.set(caller, len(account.tickets) / account.weight, newest)
        self._by_size.set(caller, account.size / account.weight, newest)
