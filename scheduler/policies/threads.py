"""How the processor's cores are shared among the replicas that compute on them. Pure.

Two engines with more threads than there are cores between them spend their time waiting for each
other: two with two threads each on two cores reach less than half of what one alone does.
"""

from __future__ import annotations

from collections.abc import Mapping


def share_cores(cores: int, most: Mapping[str, int]) -> dict[str, int]:
    """A thread count for each replica, as even as `most`, the largest that each may have, allows.

    Each has at least one, so that the sum is over `cores` only where there are more replicas than
    cores. What one does not take the others have.
    """
    shares: dict[str, int] = {}
    left = cores
    for index, name in enumerate(sorted(most, key=lambda name: (most[name], name))):
        fair = left // (len(most) - index)
        shares[name] = max(1, min(most[name], fair))
        left = max(0, left - shares[name])
    # Whole numbers leave a rest: one more each for the first that may have it.
    for name in sorted(shares):
        if left > 0 and shares[name] < most[name]:
            shares[name] += 1
            left -= 1
    return shares
