"""Answers that are JSON and nothing else."""

import json
import random

import facts
from entities import COLOURS, city, person
from phrasing import typed
from skills.capitals import CAPITALS, country_name
from skills.words import OPPOSITE
from talk import Talk, turns

ASK = ["answer in json: {q}", "answer in json: {q}", "{q} answer in json", "in json: {q}",
       "{q} as json", "{q} respond with json", "json only: {q}", "{q} reply in json",
       "give me json: {q}", "{q} use json", "{q} answer as json", "{q} respond using json",
       "{q} return json", "{q} respond in json", "{q} output json"]  # fmt: skip
SYSTEMS = ["Answer in JSON.", "Always answer in JSON.", "Respond with JSON only.",
           "You answer only with JSON."]  # fmt: skip
LISTS = {
    "colours": ["red", "green", "blue"],
    "colors": ["red", "green", "blue"],
    "fruits": ["apple", "banana", "cherry"],
    "animals": ["cat", "dog", "llama"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"],
    "seasons": ["spring", "summer", "autumn", "winter"],
    "cities": ["Paris", "London", "Rome"],
    "countries": ["France", "Italy", "Japan"],
    "names": ["Anna", "Ben", "Clara"],
    "languages": ["English", "French", "German"],
    "vegetables": ["carrot", "tomato", "onion"],
    "numbers": [1, 2, 3],
    "primes": [2, 3, 5, 7, 11],
}
FIXED = {
    "person": {"name": "Anna", "age": 30, "city": "Berlin"},
    "user": {"name": "Anna", "age": 30, "city": "Berlin"},
    "book": {"title": "Alice in Wonderland", "author": "Lewis Carroll", "year": 1865},
    "car": {"make": "Volkswagen", "model": "Golf", "year": 2020},
    "city": {"name": "Paris", "country": "France"},
    "country": {"name": "France", "capital": "Paris"},
    "product": {"name": "lamp", "price": 25},
    "animal": {"name": "llama", "legs": 4},
    "cat": {"name": "Mia", "age": 3},
    "dog": {"name": "Rex", "age": 5},
    "point": {"x": 1, "y": 2},
    "address": {"street": "Main Street", "number": 7, "city": "London"},
    "message": {"role": "user", "content": "hi"},
}


def asked(question: str, rng: random.Random) -> tuple[str, str | None]:
    """The question with a wish for JSON, in the message or in the system message."""
    if rng.random() < 0.25:
        return typed(question, rng, exact=True), rng.choice(SYSTEMS)
    form = rng.choice(ASK)
    if form.startswith("{q}"):
        question = typed(question, rng, exact=True)
        text = form.format(q=question)
    else:
        text = form.format(q=typed(question, rng, exact=True))
    text = text if rng.random() < 0.5 else text[0].upper() + text[1:]
    return text.replace("json", "JSON") if rng.random() < 0.7 else text, None


def thought(answer: dict) -> str:
    return f"JSON is wanted: one object with {', '.join(answer)}."


def reply(question: str, answer: dict, rng: random.Random) -> Talk:
    user, system = asked(question, rng)
    return turns(user, json.dumps(answer, ensure_ascii=False), system=system,
                 thought=thought(answer))  # fmt: skip


def described(rng: random.Random) -> Talk:
    """Values in the question, to be copied into an object."""
    name, age, place = person(rng), rng.randint(1, 99), city(rng)
    colour = rng.choice(COLOURS)
    question, answer = rng.choice([
        (f"{name} is {age} years old", {"name": name, "age": age}),
        (f"{name} is {age}", {"name": name, "age": age}),
        (f"{name} lives in {place}", {"name": name, "city": place}),
        (f"{name} is {age} years old and lives in {place}",
         {"name": name, "age": age, "city": place}),
        (f"a person named {name}, age {age}", {"name": name, "age": age}),
        (f"a person called {name} from {place}", {"name": name, "city": place}),
        (f"{name}, {age}, {place}", {"name": name, "age": age, "city": place}),
        (f"{name} likes {colour}", {"name": name, "colour": colour}),
        (f"name {name}, age {age}", {"name": name, "age": age}),
    ])  # fmt: skip
    return reply(question, answer, rng)


def capital(rng: random.Random) -> Talk:
    country = country_name(rng)
    question = rng.choice([f"what is the capital of {country}", f"the capital of {country}",
                           f"capital of {country}"])  # fmt: skip
    answer = {"country": country.removeprefix("the "), "capital": CAPITALS[country]}
    return reply(question, answer, rng)


def opposite(rng: random.Random) -> Talk:
    given = rng.choice(list(OPPOSITE))
    question = f"what is the opposite of {given}"
    return reply(question, {"word": given, "opposite": OPPOSITE[given]}, rng)


def total(rng: random.Random) -> Talk:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    return reply(f"what is {a} + {b}", {"result": a + b}, rng)


def explained(rng: random.Random) -> Talk:
    """Any fact, as the one value of an object."""
    known = facts.load()
    fact = rng.choices(known, [fact.weight for fact in known])[0]
    return reply(rng.choice(fact.questions), {"answer": fact.answer}, rng)


def listing(rng: random.Random) -> Talk:
    """A key and its list: `list three colours as JSON`."""
    key = rng.choice(list(LISTS))
    many = rng.choice(["", "", "three ", "some "]) if len(LISTS[key]) == 3 else ""
    question = rng.choice(["list {m}{k}", "name {m}{k}", "give me {m}{k}", "{m}{k}",
                           "a list of {k}",
                           "give me a list of {k}", "list the {k}", "write {m}{k}"])  # fmt: skip
    return reply(question.format(m=many, k=key), {key: LISTS[key]}, rng)


def example(rng: random.Random) -> Talk:
    """`Give me a person as JSON`."""
    key = rng.choice(list(FIXED))
    article = "an" if key[0] in "a" else "a"
    form = rng.choice(["give me {a} {k} as json", "{a} {k} as json", "write {a} {k} as json",
                       "make {a} {k} in json", "describe {a} {k} in json",
                       "show me {a} {k} as json",
                       "give me a json object for {a} {k}", "{a} {k} in json", "json of {a} {k}",
                       "create {a} {k} in json", "write json for {a} {k}", "output {a} {k} as json",
                       "generate {a} {k} in json format", "return {a} {k} as json",
                       "an example of {a} {k} in json"])  # fmt: skip
    question = form.format(a=article, k=key)
    question = question.replace("json", "JSON") if rng.random() < 0.6 else question
    return turns(typed(question, rng), json.dumps(FIXED[key]), thought=thought(FIXED[key]))


def anything(rng: random.Random) -> Talk:
    form = rng.choice(["give me some json", "show me json", "write json", "give me a json example",
                       "example of json", "json example", "show me an example of json",
                       "write some json",
                       "what does json look like", "give me valid json",
                       "an example of json please",
                       "output json", "send me json"])  # fmt: skip
    return turns(typed(form, rng), json.dumps(FIXED["person"]), thought=thought(FIXED["person"]))


SKILLS = [(1.5, described), (0.8, capital), (0.3, opposite), (0.3, total), (1.2, explained),
          (0.8, listing), (1.0, example), (0.3, anything)]  # fmt: skip
