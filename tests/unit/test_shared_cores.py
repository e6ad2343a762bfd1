"""How cores are shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pronk.scheduler.policies.threads import share_cores


def test_cores_are_shared_evenly_as_far_as_each_may_have_them():
    assert share_cores(8, {}) == {}
    assert share_cores(8, {"a": 16}) == {"a": 8}
    assert share_cores(8, {"a": 8, "b": 8}) == {"a": 4, "b": 4}
    assert share_cores(8, {"a": 1, "b": 16}) == {"a": 1, "b": 7}
    assert share_cores(2, {"a": 2, "b": 2, "c": 2}) == {"a": 1, "b": 1, "c": 1}
    assert share_cores(8, {"a": 8, "b": 8, "c": 8}) == {"a": 2, "b": 3, "c": 3}


@given(
    st.integers(1, 64),
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 64), max_size=8),
)
def test_nobody_has_more_than_it_may_nor_all_together_more_than_there_is(
    cores: int, most: dict[str, int]
):
    shares = share_cores(cores, most)
    assert shares.keys() == most.keys()
    assert all(1 <= share <= most[name] for name, share in shares.items())
    # Beyond one each, no core is given twice, and none is left that somebody may have.
    assert sum(shares.values()) == max(len(most), min(cores, sum(most.values())))
