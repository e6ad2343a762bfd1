"""Plain prose without a conversation, for raw completion: the facts as running text."""

import random

import facts
from skills.capitals import CAPITALS


def passage(rng: random.Random) -> str:
    """A few facts one after another, or sentences about capitals."""
    if rng.random() < 0.2:
        countries = rng.sample(list(CAPITALS), rng.randint(1, 5))
        return " ".join(f"The capital of {name} is {CAPITALS[name]}." for name in countries)
    chosen = rng.sample(facts.load(), rng.randint(1, 3))
    return "\n\n".join(fact.answer for fact in chosen)
