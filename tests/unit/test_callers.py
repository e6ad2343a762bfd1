"""Who calls, by the other end of the connection."""

from __future__ import annotations

import pytest

from pronk.frontend.callers import anonymous


@pytest.mark.parametrize(
    ("peer", "subject"),
    [
        (("10.0.0.7", 5000), "anonymous@10.0.0.7"),
        (("::1", 5000, 0, 0), "anonymous@::1"),
        # One machine has as many addresses in its network as it likes.
        (("2001:db8:1:2:3:4:5:6", 5000, 0, 0), "anonymous@2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 5001, 0, 0), "anonymous@2001:db8:1:2::/64"),
        # All link-local addresses are in one network, and each is a machine's.
        (("fe80::1%eth0", 5000, 0, 2), "anonymous@fe80::1%eth0"),
        (("::ffff:10.0.0.7", 5000, 0, 0), "anonymous@10.0.0.7"),
        ("/run/pronk.sock", "anonymous@local"),
        ("", "anonymous@local"),
        (b"\0abstract", "anonymous@local"),
        (None, "anonymous@local"),
        ((), "anonymous@local"),
    ],
)
def test_a_connection_tells_who_calls(peer: object, subject: str):
    assert anonymous(peer).subject == subject


def test_callers_at_one_address_are_one():
    assert anonymous(("10.0.0.7", 1)) == anonymous(("10.0.0.7", 2)) != anonymous(("10.0.0.8", 1))
