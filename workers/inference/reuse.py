"""What the engine has computed already: in slots, in states that it keeps, in each other's prompts.

`slots` decides what is worth it; here it is carried out on the context.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List

from .context import Context, State
from .rows import whole_before
from .sequence import Sequence
from .slots import WORTH_KEEPING, KeptPrefixes, Slot, common_prefix


class Reuse:
    """Of one engine, in its thread."""

    def __init__(self, context: Context, slots: List[Slot], memory: int) -> None:
        """`memory` bounds, in bytes, what is kept beyond the slots."""
        self._context = context
        self._slots = slots
        self._kept = KeptPrefixes[State](memory, cuttable=context.can_cut)

    def follow(self, sequence: Sequence, prompt: list[int], active: Iterable[Sequence]) -> None:
        """Looks for another one that has computed, or is about to, more of this prompt."""
        cuttable = self._context.can_cut
        for other in active:
            shared = whole_before(sequence.tokens, common_prefix(other.tokens, prompt))
            more = shared - max(sequence.shared, sequence.position)
            if more < WORTH_KEEPING or other.shifted or (not cuttable and other.position > shared):
                continue
            sequence.follows, sequence.shared = other, shared
        if sequence.follows and not cuttable:
            sequence.follows.checkpoints.add(sequence.shared)

    def catch_up(self, active: Iterable[Sequence]) -> None:
        """Gives followers what those they follow have computed by now."""
        states: dict[tuple[int, int], State] = {}
        for sequence in active:
            leader, slot = sequence.follows, sequence.slot
            if leader is None or slot is None:
                continue
            there = leader.slot is not None and not leader.shifted
            if there and leader.position < sequence.shared:
                continue
            sequence.follows = None
            if there and self._context.can_cut:
                held = leader.slot_number, leader.position
                if held not in states:
                    states[held] = self._context.save(held[0])
                found = sequence.shared, states[held]
            else:
                found = self.elsewhere(sequence.tokens[:-1], sequence.position)
            if found:
                sequence.position = self.restore(sequence, slot, *found)
                sequence.accounts.cached = min(sequence.position, sequence.prompt_length)

    def elsewhere(self, prompt: list[int], known: int) -> tuple[int, State] | None:
        """The most of a prompt that a free slot or a kept state holds; None if it is not worth it,
        where the first `known` tokens are at hand.
        """
        kept = self._kept.longest(prompt)
        if kept:
            kept = whole_before(prompt, kept[0]), kept[1]
        length, source = kept[0] if kept else 0, None
        for slot in self._slots:
            common = 0 if slot.taken else common_prefix(slot.tokens, prompt)
            common = whole_before(prompt, common)
            if common > length and (self._context.can_cut or common == len(slot.tokens)):
                length, source = common, slot
        if length - known < WORTH_KEEPING:
            return None
        if source:
            return length, self._context.save(source.number)
        return kept

    def restore(self, sequence: Sequence, slot: Slot, length: int, state: State) -> int:
        """Fills a slot with the first `length` tokens of a state that are also the sequence's;
        returns how many there are.
        """
        if not self._context.restore(slot.number, state):
            return 0
        if self._context.can_cut:
            self._context.cut(slot.number, sequence.place(length))
        return length

    def leave(self, sequence: Sequence, slot: Slot) -> None:
        """Tells a slot what it holds: all that was computed but a part of an image."""
        length = whole_before(sequence.tokens, sequence.position)
        if length < sequence.position:
            length = length if self._context.can_cut else 0
            self._context.cut(slot.number, sequence.place(length))
        slot.tokens = sequence.tokens[:length]

    def remember(self, slot: Slot) -> None:
        """Keeps what a slot holds before others use it, where that is worth it."""
        worth = len(slot.tokens) >= WORTH_KEEPING and self._kept.limit > 0
        if worth and not self._kept.holds(slot.tokens):
            state = self._context.save(slot.number)
            self._kept.keep(slot.tokens, state, state.nbytes)

    def keep(self, sequence: Sequence) -> None:
        """Keeps what a sequence has computed so far."""
        state = self._context.save(sequence.slot_number)
        self._kept.keep(sequence.tokens[: sequence.position], state, state.nbytes)
