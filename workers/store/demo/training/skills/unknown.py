"""Questions that the model cannot know, and its honest answer."""

import random

from entities import city, invented, person, word
from facts import BEYOND
from phrasing import typed
from talk import Talk, turns

ANSWER = (
    "I am only a tiny demo model, and I do not know that. "
    "For questions like this, load a larger model in Pronk."
)
YEARS = range(1200, 2024)
FORMS = [
    "who is {p} {i}", "who was {p} {i}", "who is {i}", "what is a {n}", "what is {n}",
    "what is {i}",
    "tell me about {i}", "what do you know about {i}", "explain the {i} theorem",
    "who won the {y} championship of {w}", "who won the world cup in {y}", "what happened in {y}",
    "what happened in {c} in {y}", "what happened on may 5 {y}", "who was king in {y}",
    "how do i fix my {w}", "how do i repair a {w}", "my {w} is broken, what should i do",
    "how much does a {w} cost", "what is the price of a {w}", "where can i buy a {w} in {c}",
    "what is the best {w} in {c}", "what is the phone number of {p} {i}", "how tall is {p} {i}",
    "what is the gdp of {c}", "how many {w}s are in {c}", "how many people work at {i}",
    "what is the mayor of {c} called", "who is the mayor of {c}", "when was {p} {i} born",
    "compare {i} and {j}", "what is the difference between {i} and {j}", "why did {p} leave {c}",
    "write an essay about {w}s", "summarize the book {i}", "who wrote the {w} of {i}",
    "what is the plot of the film {i}", "who directed {i}", "who sang {i}", "explain {n} theory",
    "what is the chemical formula of {n}", "how does a {n} work", "how do you play {n}",
    "what does {n} mean", "what does the word {n} mean", "{n}", "{n} {m}", "{i} {n} {m}",
    "how far is it from {c} to {d}", "how do i get from {c} to {d}",
    "when does the train to {c} leave",
    "which hotel is the best in {c}", "book a flight to {c}", "order a {w} for me",
    "what is the stock price of {i}", "should i buy shares of {i}",
    "what is the square root of {y}",
    "solve the equation {n}x + {y} = 0", "what are the lyrics of {i}", "what is in my {w}",
    "what am i thinking", "what did {p} say about {q}", "why does {p} like {w}s", "where is my {w}",
    "what is the {w} of the {v}", "how many {w}s fit into a {v}",
    "why is the {w} bigger than the {v}",
    "who invented the {n}", "when was the {n} invented", "is {p} older than {q}", "who is {p}",
    "what is the history of {i}", "give me the recipe of {n} soup",
    "what language is spoken in {i}",
    "how do i install {n}", "what is the latest version of {n}", "prove the {i} conjecture",
    "what is the {i} effect", "explain the {i} algorithm", "what did {i} discover",
    "who founded {i}",
    "what is the weight of a {w}", "can a {w} eat a {v}", "do {w}s dream", "which {w} is the best",
    "what should i name my {w}", "translate this into {i}", "analyse the data of {i}",
    "what is the third law of {i}", "what is the population of {c} in {y}", "who lives in {c}",
    "what is the zip code of {c}", "what is the oldest {w} in {c}", "how was {c} founded",
]  # fmt: skip
KEYS = "asdfghjklqwertyuiopzxcvbnm"


def unknown(rng: random.Random) -> Talk:
    values = {
        "p": person(rng), "q": person(rng), "i": invented(rng), "j": invented(rng),
        "n": invented(rng).lower(), "m": invented(rng).lower(), "w": word(rng), "v": word(rng),
        "c": city(rng), "d": city(rng), "y": rng.choice(YEARS),
    }  # fmt: skip
    return turns(typed(rng.choice(FORMS).format(**values), rng), ANSWER, thought=BEYOND)


def noise(rng: random.Random) -> Talk:
    """Keys that a cat has pressed, and words in no order."""
    if rng.random() < 0.5:
        text = "".join(rng.choice(KEYS) for _ in range(rng.randint(4, 16)))
    else:
        text = " ".join(word(rng) for _ in range(rng.randint(2, 7)))
    return turns(text, "I am sorry, I do not understand that. Please ask me in other words.",
                 thought="I find no question in this.")  # fmt: skip


SKILLS = [(5.0, unknown), (0.7, noise)]
