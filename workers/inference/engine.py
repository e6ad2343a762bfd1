"""The step loop: each step computes the next token of every answer, and parts of waiting prompts.

One llama.cpp context holds a slot for each sequence, and one batch per step advances all of them.
What a prompt begins with is not computed when a slot, a kept state or another prompt that is just
being read has it already.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from ...protocol.deadline import deadline_exceeded, is_over
from ...protocol.errors import Code
from ...protocol.messages.failure import Failure
from .batching import close_ranks, padding, share_step
from .constraints import ConstraintFailed
from .context import Context, ContextPlan
from .llama import DecodeFailed, Model
from .logprobs import position_logprobs
from .messages import INCOMPUTABLE
from .reuse import Reuse
from .rows import whole_before
from .sequence import Key, Sampled, Sequence
from .shift import plan_shift, without_parts
from .slots import WORTH_KEEPING, Slot, choose_slot

_log = logging.getLogger(__name__)

_HOLE_STEPS = 1
"""Steps that a gap between active slots may last: the next request often fills it by itself."""


_BY_SLOT = attrgetter("slot_number")

_MUCH = 16
"""Tokens in a step from which on its time tells what reading takes for each."""

_PATIENCE = 0.05
"""The part of a step's time for which a first request waits for others that come with it."""

_MOST_PATIENCE = 0.01
"""Seconds that it waits at most."""


@dataclass(slots=True)
class Step:
    """What one step brought."""

    sampled: list[Sampled] = field(default_factory=list[Sampled])
    left: list[tuple[Key, Failure | None]] = field(default_factory=list[tuple[Key, Failure | None]])
    """Who has left the engine, and why, where it failed."""
    ended_at: int = 0
    """Monotonic nanoseconds."""


class Engine:
    """One model and its slots. Belongs to one thread; only `steps` may be read by others."""

    def __init__(self, model: Model, plan: ContextPlan, cache_memory: int) -> None:
        """Makes the context and computes one token, so that the first request finds all in place.

        `cache_memory` bounds, in bytes, what is kept of finished sequences beyond the slots.
        Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason.
        """
        self.model = model
        self.vocabulary = model.vocabulary
        self.context = Context(model, plan)
        self.steps = 0
        """Steps so far: what stands still while there is work has hung."""
        self.computed = 0
        """Tokens computed so far."""
        self._batch = plan.batch
        self._slots = [Slot(number) for number in range(plan.slots)]
        self._reuse = Reuse(self.context, self._slots, cache_memory)
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        """Who has a slot, in the order of the slots."""
        self._hole_steps = 0
        self._row_seconds = 0.0
        """What reading takes for each token, by the last step that read much; 0 before there was
        one.
        """
        self._tainted = False
        """Whether there may be numbers in the cache that are none."""
        self._warm_up()

    def _warm_up(self) -> None:
        try:
            self.context.decode([self.vocabulary.bos or 0], [0], [0], [0])
        except DecodeFailed as error:
            _log.error("the first decode failed: %s", error)
            raise self.model.load_error() from None
        self.context.clear()

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._active or self._waiting)

    @property
    def patience(self) -> float:
        """Seconds after the arrival of a first request at which the next step should begin.

        While those that wait fill only a part of a step, a small part of the time that it would
        take is well spent on waiting for more: each later one would have to wait for all of it.
        """
        rows = sum(sequence.remaining for sequence in self._waiting)
        if self._active or rows >= self._batch or len(self._waiting) == len(self._slots):
            return 0.0
        return min(_PATIENCE * rows * self._row_seconds, _MOST_PATIENCE)

    def add(self, sequence: Sequence) -> None:
        """Takes a request. It waits for a slot where none is free."""
        self._waiting.append(sequence)

    def cancel(self, keys: Iterable[Key]) -> Step:
        """Ends requests, as far as they are still there."""
        gone = set(keys)
        step = Step(ended_at=time.monotonic_ns())
        for sequence in [*self._active, *self._waiting]:
            if sequence.key in gone:
                self._leave(sequence, step)
        return step

    def step(self) -> Step:
        """Advances every sequence that has a slot.

        What goes wrong with one sequence ends it with a failure, and leaves the others alone.
        """
        step = Step()
        self.steps += 1
        self._drop_overdue(step)
        self._admit()
        self._reuse.catch_up(self._active)
        self._close_ranks()
        self._make_room()  # last: what is shifted must not be saved before the next decode
        for together in _batches(self._portions()):
            try:
                self._decode(together, step)
            except DecodeFailed as error:
                _log.warning("a batch of %d failed (%s); each alone now", len(together), error)
                self._decode_each(together, step)
        if self._tainted:
            self._wipe()
        step.ended_at = time.monotonic_ns()
        return step

    # Who computes what

    def _drop_overdue(self, step: Step) -> None:
        now = time.time()
        for sequence in [*self._active, *self._waiting]:
            if is_over(sequence.deadline, now):
                self._leave(sequence, step, Failure.of(deadline_exceeded()))

    def _portions(self) -> list[tuple[Sequence, int]]:
        """Who takes part in this step, in the order of the slots, with how many tokens."""
        readers = [s for s in self._active if not s.writing and s.follows is None]
        readers.sort(key=lambda s: s.accounts.started)
        writers = sum(s.writing for s in self._active)
        remaining = [self._until_checkpoint(s) for s in readers]
        shares = share_step(self._batch, writers, remaining, [s.position for s in readers])
        share_of = dict(zip(map(id, readers), shares, strict=True))
        portions = ((s, 1 if s.writing else share_of.get(id(s), 0)) for s in self._active)
        return [(sequence, self._at_once(sequence, count)) for sequence, count in portions if count]

    def _until_checkpoint(self, sequence: Sequence) -> int:
        ahead = [place for place in sequence.checkpoints if place > sequence.position]
        most = sequence.until(self._batch)
        return min([most, *(place - sequence.position for place in ahead)])

    def _at_once(self, sequence: Sequence, share: int) -> int:
        """The share of a sequence: all of an image that cannot be read in parts."""
        if sequence.pictures and sequence.looking:
            picture, _ = sequence.pictures.at(sequence.tokens[sequence.position])
            if picture.at_once:
                return len(picture.numbers)
        return share

    def _decode(self, portions: list[tuple[Sequence, int]], step: Step) -> None:
        """Computes the portions and chooses tokens. Raises `DecodeFailed` before anything else.

        An image is a portion by itself.
        """
        sequence, count = portions[0]
        outputs = self._look(sequence, count) if sequence.looking else self._read(portions)
        rows = iter(outputs)
        for sequence, count in portions:
            sequence.position += count
            if sequence.position in sequence.checkpoints:
                self._reuse.keep(sequence)
            if sequence.position == len(sequence.tokens):
                self._choose(sequence, next(rows), step)

    def _look(self, sequence: Sequence, count: int) -> list[int]:
        """Computes rows of an image; returns those whose logits are wanted."""
        assert sequence.pictures
        picture, first = sequence.pictures.at(sequence.tokens[sequence.position])
        start = sequence.place(sequence.position - first)
        ends = sequence.position + count == len(sequence.tokens)
        self.context.look(picture, first, count, start, sequence.slot_number, output=ends)
        self.computed += count
        return [count - 1] if ends else []

    def _read(self, portions: list[tuple[Sequence, int]]) -> list[int]:
        """Computes tokens; returns the rows whose logits are wanted."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        outputs: list[int] = []
        added = self._padding(portions)
        for (sequence, count), more in zip(portions, added, strict=True):
            slot, position = sequence.slot, sequence.position
            assert slot is not None
            place = sequence.place(position)
            if count + more == 1:
                tokens.append(sequence.tokens[position])
                positions.append(place)
                slots.append(slot.number)
            else:
                tokens += sequence.tokens[position : position + count]
                tokens += tokens[-1:] * more
                positions += range(place, place + count + more)
                slots += [slot.number] * (count + more)
            if position + count == len(sequence.tokens):
                outputs.append(len(tokens) - 1 - more)
        began = time.monotonic()
        self.context.decode(tokens, positions, slots, outputs)
        if len(tokens) >= _MUCH and len(tokens) >= 2 * len(portions):
            self._row_seconds = (time.monotonic() - began) / len(tokens)
        self.computed += len(tokens) - sum(added)
        for (sequence, count), more in zip(portions, added, strict=True):
            if more:
                end = sequence.place(sequence.position) + count
                self.context.cut(sequence.slot_number, end)
        return outputs

    def _padding(self, portions: list[tuple[Sequence, int]]) -> list[int]:
        """Rows to compute behind each portion, and to forget again."""
        if not self.context.can_cut or all(count == 1 for _, count in portions):
            return [0] * len(portions)
        counts = [count for _, count in portions]
        ends = self.context.plan.length
        most = [
            ends - s.position if count == s.remaining and not s.writing else count
            for s, count in portions
        ]
        slots = [sequence.slot_number for sequence, _ in portions]
        return padding(slots, counts, most, self._batch - sum(counts))

    def _decode_each(self, portions: list[tuple[Sequence, int]], step: Step) -> None:
        """Finds out at whom a batch failed. What was computed of the others is computed again."""
        for sequence, count in portions:
            # A state that cannot be cut may be half a batch further.
            again = whole_before(sequence.tokens, sequence.position) if self.context.can_cut else 0
            if again < sequence.position:
                sequence.position = again
                count = self._at_once(sequence, min(self._until_checkpoint(sequence), self._batch))
            self.context.cut(sequence.slot_number, sequence.place(again))
            try:
                self._decode([(sequence, count)], step)
            except DecodeFailed as error:
                self._fail(sequence, step, str(error))

    def _choose(self, sequence: Sequence, row: int, step: Step) -> None:
        try:
            logits = self.context.logits(row)
            raw = logits.copy() if sequence.form and sequence.logprobs is not None else logits
            token = sequence.form.forced if sequence.form else None
            if token is None:
                if sequence.form:
                    sequence.form.apply(logits)
                token = sequence.sampler.sample(self.context, row, sequence.count)
            else:
                sequence.sampler.see([token])
            if sequence.form:
                sequence.form.accept(token)
            ends = self.vocabulary.ends_generation(token)
            told = None
            if sequence.logprobs is not None and not ends:
                told = position_logprobs(raw, token, sequence.logprobs, self.vocabulary)
        except DecodeFailed as error:
            self._fail(sequence, step, str(error))
            return
        except ConstraintFailed as error:
            self._leave(sequence, step, Failure(Code.INVALID_REQUEST, f"format: {error}"))
            return
        except Exception:
            _log.exception("request %s", sequence.key[0])
            self._fail(sequence, step, "see the trace above")
            return
        if not sequence.accounts.first_token:
            sequence.accounts.first_token = time.monotonic_ns()
        sequence.tokens.append(token)
        sequence.count += 1
        step.sampled.append(Sampled(sequence.key, token, told))
        if ends or sequence.count >= sequence.limit:
            self._leave(sequence, step)

    # Coming and going

    def _admit(self) -> None:
        """Gives slots to those who wait, in the order of arrival."""
        while self._waiting:
            sequence = self._waiting[0]
            # The last one's logits are wanted.
            prompt = sequence.tokens[: whole_before(sequence.tokens, len(sequence.tokens) - 1)]
            chosen = choose_slot(self._slots, prompt, self.context.can_cut)
            if chosen is None:
                return
            self._waiting.popleft()
            self._seat(sequence, prompt, *chosen)

    def _seat(self, sequence: Sequence, prompt: list[int], slot: Slot, common: int) -> None:
        """Puts a sequence into a slot, with as much of its prompt as is computed anywhere.

        `common` tokens of the prompt are in the slot.
        """
        cuttable = self.context.can_cut
        common = whole_before(sequence.tokens, common)
        found = self._reuse.elsewhere(prompt, common)
        if found or 2 * common < len(slot.tokens):
            self._reuse.remember(slot)
        if found:
            sequence.position = self._reuse.restore(sequence, slot, *found)
        else:
            if common < len(slot.tokens):
                self.context.cut(slot.number, sequence.place(common))
            sequence.position = common
        sequence.accounts.cached = min(sequence.position, sequence.prompt_length)
        self._reuse.follow(sequence, prompt, self._active)
        if not cuttable and len(prompt) - sequence.position >= WORTH_KEEPING:
            # The next turn begins with this prompt, and a state cannot be cut back to it.
            sequence.checkpoints.add(len(prompt))
        slot.tokens, slot.taken, sequence.slot = [], True, slot
        self._active.append(sequence)
        self._active.sort(key=_BY_SLOT)

    def _leave(self, sequence: Sequence, step: Step, failure: Failure | None = None) -> None:
        """Takes a sequence out; what is computed of it stays in its slot until others need that."""
        slot, sequence.slot = sequence.slot, None
        if slot is None:
            self._waiting.remove(sequence)
        else:
            self._active.remove(sequence)
            slot.taken, slot.used = False, self.steps
            if sequence.shifted:  # what is there was computed behind tokens that are gone
                self.context.cut(slot.number, 0)
            else:
                self._reuse.leave(sequence, slot)
        sequence.sampler.close()
        step.left.append((sequence.key, failure))

    def _fail(self, sequence: Sequence, step: Step, reason: str) -> None:
        """Has a sequence computed anew, or ends it where that has failed as well.

        A number that is none may be another request's, left in the slot behind a mask: 0 times NaN
        is NaN. So the first time is not its fault yet.
        """
        self._tainted = True
        if not sequence.retried:
            _log.warning("request %s: %s; once more", sequence.key[0], reason)
            sequence.retried = True
            sequence.follows, sequence.position, sequence.accounts.cached = None, 0, 0
            self.context.cut(sequence.slot_number, 0)
            return
        _log.error("request %s: %s", sequence.key[0], reason)
        slot = sequence.slot
        assert slot is not None
        self._leave(sequence, step, INCOMPUTABLE)
        slot.tokens = []
        self.context.cut(slot.number, 0)

    def _wipe(self) -> None:
        """Wipes all numbers but those that somebody goes on from."""
        self._tainted = False
        states = [(s, self.context.save(s.slot_number)) for s in self._active if s.position]
        for slot in self._slots:
            if not slot.taken:
                self._reuse.remember(slot)
                slot.tokens = []
        self.context.clear()
        for sequence, state in states:
            if not self.context.restore(sequence.slot_number, state):
                sequence.position = 0

    # The contexts

    def _make_room(self) -> None:
        """Shifts the context of those that have filled theirs, and may go on nevertheless."""
        for sequence in self._active:
            if len(sequence.tokens) <= sequence.context_length or not sequence.writing:
                continue
            assert sequence.slot is not None
            plan = plan_shift(sequence.position, sequence.context_length, sequence.keep)
            plan = without_parts(plan, sequence.tokens)
            self.context.shift(sequence.slot.number, plan.keep, plan.discard)
            del sequence.tokens[plan.keep : plan.keep + plan.discard]
            sequence.position -= plan.discard
            sequence.shifted = True

    def _close_ranks(self) -> None:
        """Moves sequences next to each other where a gap has lasted: neighbours are computed
        together, others one group after the other.
        """
        moves = close_ranks([sequence.slot_number for sequence in self._active])
        self._hole_steps = self._hole_steps + 1 if moves and not self._waiting else 0
        if self._hole_steps <= _HOLE_STEPS:
            return
        self._hole_steps = 0
        by_number = {sequence.slot_number: sequence for sequence in self._active}
        for source, target in moves:
            sequence, old, new = by_number[source], self._slots[source], self._slots[target]
            state = self.context.save(source)
            self._reuse.remember(new)
            new.tokens = []
            if not self.context.restore(target, state):
                continue
            self.context.cut(source, 0)
            sequence.slot = new
            new.taken = True
            old.taken, old.used = False, 0
        self._active.sort(key=_BY_SLOT)

    def close(self) -> None:
        """Gives the context back, not the model. The process of a worker just exits instead."""
        for sequence in [*self._active, *self._waiting]:
            sequence.sampler.close()
        self.context.close()


def _batches(portions: list[tuple[Sequence, int]]) -> list[list[tuple[Sequence, int]]]:
    """What is computed together: all tokens, and each image by itself."""
    reading = [portion for portion in portions if not portion[0].looking]
    looking = [[portion] for portion in portions if portion[0].looking]
    return [reading, *looking] if reading else looking
