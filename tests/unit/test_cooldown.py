"""A model that cannot be loaded is left alone for a while, with its reason."""

from __future__ import annotations

from pronk.protocol.errors import Code
from pronk.protocol.messages.failure import Failure
from pronk.scheduler.policies.cooldown import FAILURES, MEMORY, Cooldowns

A, B = "a" * 64, "b" * 64
BROKEN = Failure(Code.LOAD_FAILED, "a:latest could not be loaded: it is broken")


def failing(context: int = 1024, times: int = FAILURES, moment: float = 100.0) -> Cooldowns:
    cooldowns = Cooldowns(30.0)
    for count in range(1, times + 1):
        assert cooldowns.failed(A, context, BROKEN, moment) == (count >= FAILURES)
    return cooldowns


def test_two_failures_in_a_row_stop_nobody_and_the_third_one_does():
    assert failing(times=FAILURES - 1).refusal(A, 1024, 100.0) is None
    refusal = failing().refusal(A, 1024, 110.0)
    assert refusal
    assert refusal.code is Code.LOAD_FAILED
    assert refusal.message.startswith(BROKEN.message)
    assert "3 times in a row" in refusal.message
    assert "20 s" in refusal.message
    assert refusal.retry_after == 20.0


def test_other_models_are_not_concerned():
    assert failing().refusal(B, 1024, 100.0) is None


def test_a_load_that_goes_well_ends_the_row():
    cooldowns = failing(times=FAILURES - 1)
    cooldowns.loaded(A, 1024)
    assert not cooldowns.failed(A, 1024, BROKEN, 100.0)


def test_a_load_with_less_context_may_be_tried_and_proves_nothing_for_more():
    cooldowns = failing(context=4096)
    assert cooldowns.refusal(A, 2048, 100.0) is None
    cooldowns.loaded(A, 2048)
    assert cooldowns.refusal(A, 4096, 100.0)


def test_after_its_time_one_more_failure_is_enough():
    cooldowns = failing()
    assert cooldowns.refusal(A, 1024, 131.0) is None
    assert cooldowns.failed(A, 1024, BROKEN, 131.0)
    assert cooldowns.refusal(A, 1024, 150.0)


def test_old_failures_are_forgotten():
    cooldowns = failing(times=FAILURES - 1)
    assert not cooldowns.failed(B, 1024, BROKEN, 100.0 + MEMORY + 1)
    assert not cooldowns.failed(A, 1024, BROKEN, 100.0 + MEMORY + 2)


def test_without_a_time_everybody_may_try():
    cooldowns = Cooldowns(0.0)
    for _ in range(FAILURES):
        cooldowns.failed(A, 1024, BROKEN, 100.0)
    assert cooldowns.refusal(A, 1024, 100.0) is None
