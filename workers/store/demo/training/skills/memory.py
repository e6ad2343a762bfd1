"""What was said earlier in the conversation: copied back when asked."""

import random

from entities import ANIMALS, COLOURS, city, person, word
from phrasing import typed
from talk import Talk, turns

NAME_TOLD = ["my name is {x}", "my name is {x}", "i am {x}", "i'm {x}", "call me {x}",
             "hi, my name is {x}", "hello, i am {x}", "hello, my name is {x}",
             "you can call me {x}",
             "hi, i'm {x}", "i am called {x}", "people call me {x}", "please call me {x}",
             "the name is {x}", "my friends call me {x}", "hi! my name is {x}", "{x} is my name",
             "hello! i'm {x}", "hey, i am {x}", "remember that my name is {x}"]  # fmt: skip
NAME_ASKED = ["what is my name", "what is my name", "what's my name", "who am i",
              "do you know my name",
              "do you remember my name", "tell me my name", "what am i called", "say my name",
              "do you remember what my name is", "and what is my name", "can you tell me my name",
              "how am i called", "remember my name", "what did i say my name was"]  # fmt: skip
CITY_TOLD = ["i live in {x}", "i live in {x}", "i am from {x}", "my home is in {x}",
             "i come from {x}",
             "my city is {x}", "i moved to {x}", "my home town is {x}"]  # fmt: skip
CITY_ASKED = ["where do i live", "where do i live", "where am i from", "what is my city",
              "which city do i live in", "where is my home", "do you remember where i live",
              "in which city do i live"]  # fmt: skip
COLOUR_TOLD = ["my favourite colour is {x}", "my favorite color is {x}", "i like {x} best",
               "the colour i like best is {x}", "my favourite color is {x}"]  # fmt: skip
COLOUR_ASKED = ["what is my favourite colour", "what is my favorite color",
                "which colour do i like",
                "do you remember my favourite colour", "which color do i like best",
                "what colour do i like"]  # fmt: skip
PET_TOLD = [
    "my {a} is called {x}",
    "i have a {a} called {x}",
    "i have a {a} named {x}",
    "my {a}'s name is {x}",
    "the name of my {a} is {x}",
    "i have a {a}. its name is {x}",
]
PET_ASKED = ["what is my {a}'s name", "what is the name of my {a}", "what is my {a} called",
             "how is my {a} called", "do you remember the name of my {a}", "who is my {a}",
             "tell me the name of my {a}"]  # fmt: skip
WORD_TOLD = ["the code word is {x}", "remember the word {x}", "the secret word is {x}",
             "the password is {x}", "please remember: {x}", "remember this word: {x}",
             "the magic word is {x}", "keep in mind the word {x}"]  # fmt: skip
WORD_ASKED = ["what is the code word", "which word did i tell you", "what was the word",
              "what is the secret word", "what is the password", "what is the word",
              "what did i ask you to remember", "which word should you remember",
              "what is the magic word", "tell me the word", "repeat the word"]  # fmt: skip
NUMBER_TOLD = ["my number is {x}", "my lucky number is {x}", "remember the number {x}",
               "the number is {x}", "i am thinking of the number {x}"]  # fmt: skip
NUMBER_ASKED = [
    "what is my number",
    "what was the number",
    "what is the number",
    "which number did i tell you",
    "what number did i say",
    "tell me the number",
]
UNTOLD = {
    "name": (NAME_ASKED, "You have not told me your name yet."),
    "city": (CITY_ASKED, "You have not told me where you live."),
    "colour": (COLOUR_ASKED, "You have not told me your favourite colour."),
    "word": (WORD_ASKED, "You have not told me a word yet."),
}


LISTENED = "The user tells me something to remember."
UNHEARD = "Nobody has told me that in this conversation, so I say so."


def recalled(kind: str, x: object) -> str:
    """What to think before an answer that was told earlier."""
    return f"The user has told me the {kind}: {x}."


def fact(rng: random.Random, kind: str) -> tuple[str, str, str, str, str]:
    """What is told, the reply, what is asked, the answer, and what to think before it."""
    if kind == "name":
        x = person(rng)
        return (rng.choice(NAME_TOLD).format(x=x), f"Nice to meet you, {x}!",
                rng.choice(NAME_ASKED), f"Your name is {x}.", recalled(kind, x))  # fmt: skip
    if kind == "city":
        x = city(rng)
        return (rng.choice(CITY_TOLD).format(x=x), f"{x} sounds like a good place to live.",
                rng.choice(CITY_ASKED), f"You live in {x}.", recalled(kind, x))  # fmt: skip
    if kind == "colour":
        x = rng.choice(COLOURS)
        return (rng.choice(COLOUR_TOLD).format(x=x), f"I will remember that you like {x}.",
                rng.choice(COLOUR_ASKED), f"Your favourite colour is {x}.",
                recalled(kind, x))  # fmt: skip
    if kind == "pet":
        x, a = person(rng), rng.choice(ANIMALS)
        return (rng.choice(PET_TOLD).format(x=x, a=a), f"{x} is a lovely name for a {a}.",
                rng.choice(PET_ASKED).format(a=a), f"Your {a} is called {x}.",
                recalled(f"name of the {a}", x))  # fmt: skip
    if kind == "word":
        x = word(rng)
        x = x.upper() if rng.random() < 0.15 else x
        return (rng.choice(WORD_TOLD).format(x=x), f"I will remember the word {x}.",
                rng.choice(WORD_ASKED), f"The word is {x}.", recalled(kind, x))  # fmt: skip
    x = rng.randint(2, 99) if rng.random() < 0.7 else rng.randint(100, 9999)
    return (rng.choice(NUMBER_TOLD).format(x=x), f"I will remember the number {x}.",
            rng.choice(NUMBER_ASKED), f"The number is {x}.", recalled(kind, x))  # fmt: skip


KINDS = ("name", "city", "colour", "pet", "word", "number")
SHARES = (10, 2, 1, 2, 2, 1)


def recall(rng: random.Random) -> Talk:
    """Told first, asked later, perhaps with other things between, or two facts at once."""
    kinds = dict.fromkeys(rng.choices(KINDS, SHARES, k=rng.choice((1, 1, 2, 3))))
    facts = [fact(rng, kind) for kind in kinds]
    texts, thoughts = [], [LISTENED] * len(facts)
    for told, reply, *_ in facts:
        texts += [typed(told, rng, exact=True), reply]
    rng.shuffle(facts)
    for _, _, asked, answer, thought in facts:
        texts += [typed(asked, rng), answer]
        thoughts.append(thought)
    return turns(*texts, thought=thoughts, loose=True)


def at_once(rng: random.Random) -> Talk:
    """Told and asked in one message."""
    told, _, asked, answer, thought = fact(rng, rng.choices(KINDS, SHARES)[0])
    question = f"{typed(told, rng, exact=True).rstrip('?!.')}. {typed(asked, rng)}"
    return turns(question, answer, thought=thought)


def told_only(rng: random.Random) -> Talk:
    told, reply, *_ = fact(rng, rng.choices(KINDS, SHARES)[0])
    return turns(typed(told, rng, exact=True), reply, thought=LISTENED)


def never_told(rng: random.Random) -> Talk:
    asked, answer = UNTOLD[rng.choice(list(UNTOLD))]
    return turns(typed(rng.choice(asked), rng), answer, thought=UNHEARD, loose=True)


def corrected(rng: random.Random) -> Talk:
    """The later name counts."""
    first, second = person(rng), person(rng)
    change = rng.choice(["no, my name is {x}", "sorry, i am {x}", "actually my name is {x}",
                         "now my name is {x}", "i changed my name to {x}"])  # fmt: skip
    return turns(
        typed(rng.choice(NAME_TOLD).format(x=first), rng, exact=True),
        f"Nice to meet you, {first}!",
        typed(change.format(x=second), rng, exact=True),
        f"Nice to meet you, {second}!",
        typed(rng.choice(NAME_ASKED), rng),
        f"Your name is {second}.",
        thought=[LISTENED, LISTENED, recalled("name", second)],
    )


SKILLS = [(5.0, recall), (1.2, at_once), (0.8, told_only), (0.6, never_told), (0.4, corrected)]
