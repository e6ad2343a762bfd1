"""What other hosts lack is remembered for a while, for each host by itself."""

from __future__ import annotations

from pronk.protocol.messages.fleet import ProcessIdentity
from pronk.scheduler.absences import BELIEVED_SECONDS, Absences

ONE = ProcessIdentity(1, 1, "pid:[1]", "boot")
SAME_HOST = ProcessIdentity(2, 9, "pid:[1]", "boot")
OTHER = ProcessIdentity(1, 1, "pid:[1]", "another boot")


def test_an_absence_belongs_to_a_host_and_ends_by_itself():
    absences = Absences()
    absences.note(ONE, "a", 100.0)
    absences.note(ONE, "b", 110.0)
    assert absences.of(SAME_HOST, 111.0) == {"a", "b"}
    assert absences.of(OTHER, 111.0) == frozenset()
    assert absences.of(ONE, 100.0 + BELIEVED_SECONDS) == {"b"}
    assert absences.of(ONE, 110.0 + BELIEVED_SECONDS) == frozenset()


def test_hosts_that_come_and_go_do_not_fill_the_memory():
    absences = Absences()
    for number in range(30_000):
        absences.note(ProcessIdentity(1, 1, str(number), "boot"), "a", 0.0)
    assert len(absences._until) <= 10_000
