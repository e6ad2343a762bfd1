"""Lifecycles: the states of one kind of thing, and which of them may follow which.

A lifecycle is an enum and one table beside it. Whoever owns a thing keeps its state, and changes it
only with `step`, which writes every change to the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)


class Lifecycle(Generic[State]):
    """The one place that says how a state may change.

    `thing` names the kind of thing in the log. `transitions` has every state of the enum, with
    those that may follow it; a state that nothing follows is an end. Raises ValueError when one is
    missing.
    """

    def __init__(
        self,
        thing: str,
        transitions: Mapping[State, Set[State]],
        log: logging.Logger,
        level: int = logging.INFO,
    ) -> None:
        states = type(next(iter(transitions)))
        if missing := set(states) - set(transitions):
            raise ValueError(f"the lifecycle of a {thing} does not say what follows {missing}")
        self.thing = thing
        self.transitions = transitions
        self._log = log
        self._level = level

    def step(self, name: object, old: State, new: State) -> State:
        """`new`, when it may follow `old`; `name` says in the log which thing it is.

        Raises ValueError where it may not: that would be a fault of whoever calls.
        """
        if new not in self.transitions[old]:
            raise ValueError(f"a {self.thing} cannot go from {old.value} to {new.value}")
        self._log.log(self._level, "%s %s: %s → %s", self.thing, name, old.value, new.value)
        return new
