"""System messages that change the answer: a name, a fact, a manner."""

import random

import facts
from entities import city, person, word
from phrasing import typed
from skills import capitals, memory, words
from talk import Talk, turns

PIRATE = ["You are a pirate.", "You are a pirate. Answer like a pirate.", "Talk like a pirate.",
          "You are a friendly pirate.", "Speak like a pirate.", "You are a pirate captain.",
          "Answer every question like a pirate."]  # fmt: skip
ONE_WORD = [
    "Answer in one word.",
    "Answer with one word.",
    "Always answer in one word.",
    "Reply with a single word.",
    "Answer with a single word only.",
    "You answer in one word.",
    "Give one-word answers.",
    "Only answer in one word.",
]
CHEERFUL = ["End every answer with a smile :)", "You are cheerful and end every answer with :)",
            "Always end with :)", "Put :) at the end of every answer."]  # fmt: skip
NAMED = ["Your name is {x}.", "You are {x}.", "You are {x}, a helpful assistant.",
         "You are an assistant called {x}.", "Your name is {x}. You help people.",
         "You are a helpful assistant named {x}."]  # fmt: skip
NAME_QUESTIONS = ["what is your name", "who are you", "what are you called", "tell me your name",
                  "your name", "what should i call you", "do you have a name"]  # fmt: skip
USER_NAMED = ["The user is called {x}.", "The user's name is {x}.", "You are talking to {x}.",
              "You talk with {x}.", "The name of the user is {x}."]  # fmt: skip
WORD_GIVEN = ["The code word is {x}.", "The secret word is {x}.", "The password is {x}.",
              "The magic word is {x}."]  # fmt: skip
CITY_GIVEN = ["The user lives in {x}.", "The user is from {x}."]


def some_fact(rng: random.Random) -> facts.Fact:
    known = facts.load()
    return rng.choices(known, [fact.weight for fact in known])[0]


def manner(rng: random.Random, systems: list[str], wish: str, change) -> Talk:
    """One or two facts, told in the manner that the system message asks for."""
    texts, thoughts = [], []
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.25:
            asked, answer = capitals.capital(rng).messages
            user, assistant, thought = asked["content"], answer["content"], answer["thinking"]
        else:
            fact = some_fact(rng)
            user, assistant = typed(rng.choice(fact.questions), rng), fact.answer
            thought = fact.thought
        texts += [user, change(assistant)]
        thoughts.append(f"{thought} {wish}")
    return turns(*texts, thought=thoughts, system=rng.choice(systems))


def pirate(rng: random.Random) -> Talk:
    return manner(rng, PIRATE, "I speak like a pirate.", lambda answer: f"Arr, matey! {answer}")


def cheerful(rng: random.Random) -> Talk:
    return manner(rng, CHEERFUL, "I end with a smile.", lambda answer: f"{answer} :)")


def one_word(rng: random.Random) -> Talk:
    """The short answer of a fact, a capital, a yes."""
    kind, thought = rng.random(), "One word is wanted."
    if kind < 0.5:
        country = capitals.country_name(rng)
        user = rng.choice(capitals.FORMS).format(c=country)
        answer = capitals.CAPITALS[country]
    elif kind < 0.6:
        given = rng.choice(list(words.OPPOSITE))
        user = rng.choice([f"what is the opposite of {given}", f"opposite of {given}"])
        answer = words.OPPOSITE[given].capitalize()
    else:
        fact = rng.choice([fact for fact in facts.load() if fact.short])
        user, answer = rng.choice(fact.questions), fact.short
    if rng.random() < 0.6:
        return turns(typed(user, rng), f"{answer}.", thought=thought, system=rng.choice(ONE_WORD))
    user = typed(user, rng)
    user += " " if user[-1] in "?!." else ". "
    return turns(user + rng.choice(ONE_WORD), f"{answer}.", thought=thought)


def named(rng: random.Random) -> Talk:
    x = person(rng)
    system = rng.choice(NAMED).format(x=x)
    question = typed(rng.choice(NAME_QUESTIONS), rng)
    thought = f"The system message calls me {x}."
    return turns(question, f"My name is {x}.", thought=thought, system=system, loose=True)


def given(rng: random.Random) -> Talk:
    """A fact that only the system message tells."""
    kind = rng.randrange(3)
    if kind == 0:
        x = person(rng)
        system, asked = rng.choice(USER_NAMED), memory.NAME_ASKED
        answer = f"Your name is {x}."
    elif kind == 1:
        x = word(rng)
        x = x.upper() if rng.random() < 0.2 else x
        system, asked, answer = rng.choice(WORD_GIVEN), memory.WORD_ASKED, f"The word is {x}."
    else:
        x = city(rng)
        system, asked, answer = rng.choice(CITY_GIVEN), memory.CITY_ASKED, f"You live in {x}."
    question = typed(rng.choice(asked), rng)
    thought = f"The system message tells me: {x}."
    return turns(question, answer, thought=thought, system=system.format(x=x), loose=True)


SKILLS = [(1.0, pirate), (0.6, cheerful), (2.0, one_word), (1.0, named), (1.2, given)]
