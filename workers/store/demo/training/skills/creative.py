"""Stories, poems and jokes about anything: the model has one of each, and tells that one."""

import random

import facts
from entities import invented, person, word
from phrasing import typed
from talk import Talk, turns

WISHES = {
    "tell me a story": ["tell me a story about a {x}", "write a story about a {x}",
                        "a story about {x}",
                        "tell me a short story about {x}", "write a short story about a {x}",
                        "can you write a story about {x}",
                        "tell me a one sentence story about {x}"],
    "write a poem": ["write a poem about a {x}", "write a poem about {x}", "a poem about the {x}",
                     "write me a poem about {x}", "can you write a poem about a {x}",
                     "write a short poem about {x}", "write a poem for {x}"],
    "tell me a joke": ["tell me a joke about a {x}", "tell me a joke about {x}",
                       "a joke about {x}s",
                       "do you know a joke about a {x}", "tell me a {x} joke"],
    "write a haiku": ["write a haiku about a {x}", "a haiku about {x}",
                      "write a haiku about the {x}"],
}  # fmt: skip


def about_anything(rng: random.Random) -> Talk:
    wish = rng.choice(list(WISHES))
    known = next(fact for fact in facts.load() if wish in fact.questions)
    topic = rng.choice([word, invented, person])(rng)
    question = typed(rng.choice(WISHES[wish]).format(x=topic), rng)
    return turns(question, known.answer, thought=known.thought, loose=True)


SKILLS = [(1.0, about_anything)]
