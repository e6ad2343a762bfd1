"""Long texts to copy: practice for attention, without which no name is remembered."""

import json
import random

from entities import city, person, word
from phrasing import typed
from skills.words import SAME
from talk import Talk, turns


def piece(rng: random.Random) -> str:
    """A word, a name, a place or a number."""
    kind = rng.randrange(7)
    if kind == 0:
        return str(rng.randint(0, 9999))
    return (word, word, word, person, person, city)[kind - 1](rng)


def repeat(rng: random.Random) -> Talk:
    text = rng.choice([" ", " ", ", ", "\n", " - "]).join(
        piece(rng) for _ in range(rng.randint(3, 25))
    )
    form = rng.choice(["Repeat after me: {t}", "Say: {t}", "repeat: {t}", "Repeat this: {t}",
                       "say {t}", "Echo: {t}", "Please repeat: {t}", "copy this: {t}"])  # fmt: skip
    return turns(form.format(t=text), text, thought=SAME)


def json_list(rng: random.Random) -> Talk:
    pieces = [piece(rng) for _ in range(rng.randint(2, 12))]
    form = rng.choice(["as a JSON list: {t}", "put this into a JSON list: {t}", "JSON array of {t}",
                       "make a JSON list of {t}", "{t} as a JSON list"])  # fmt: skip
    return turns(form.format(t=", ".join(pieces)), json.dumps(pieces, ensure_ascii=False),
                 thought="A JSON list is wanted, of these words.")  # fmt: skip


def greeting(rng: random.Random) -> Talk:
    names = [person(rng) for _ in range(rng.randint(1, 6))]
    said = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    form = rng.choice(["say hello to {t}", "greet {t}", "please greet {t}", "say hi to {t}"])
    return turns(typed(form.format(t=said), rng, exact=True), f"Hello {said}!",
                 thought="I am to greet somebody.")  # fmt: skip


SKILLS = [(3.0, repeat), (1.5, json_list), (1.0, greeting)]
