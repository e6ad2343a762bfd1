"""The tools that conversations offer, and random uses of each: question, arguments, result."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from entities import city, invented, person, word

SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"]
LANGUAGES = ["French", "German", "Spanish", "Italian", "Dutch", "Polish", "Turkish", "Japanese"]
CURRENCIES = ["EUR", "USD", "GBP", "JPY", "CHF", "SEK", "PLN", "CAD"]


@dataclass
class Use:
    """One use of a tool: the question, the arguments, the result and the sentence about it."""

    question: str
    arguments: dict[str, object]
    result: str
    answer: str


@dataclass(frozen=True)
class Tool:
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    properties: dict[str, tuple[str, str]]  # parameter → (type, description)
    use: Callable[[random.Random], Use]


def result_text(value: dict[str, object], plain: str, rng: random.Random) -> str:
    """A tool's answer as JSON or as plain text."""
    return json.dumps(value) if rng.random() < 0.5 else plain


def weather(rng: random.Random) -> Use:
    place, degrees, sky = city(rng), rng.randint(-15, 39), rng.choice(SKIES)
    question = rng.choice([
        "what is the weather in {c}", "what is the weather in {c}",
        "what is the weather like in {c}",
        "how is the weather in {c}", "weather in {c}", "is it raining in {c}", "is it cold in {c}",
        "what is the temperature in {c}", "how warm is it in {c}", "tell me the weather in {c}",
        "how is the weather in {c} today", "do i need an umbrella in {c}", "is it sunny in {c}",
        "what's the weather like in {c} right now", "check the weather in {c}", "weather for {c}",
        "get the weather for {c}", "what is the weather in {c} today",
        "i am going to {c}, how is the weather there",
    ]).format(c=place)  # fmt: skip
    result = rng.choice([
        json.dumps({"temperature": degrees, "condition": sky}),
        json.dumps({"city": place, "temperature": degrees, "condition": sky}),
        f"{degrees} degrees, {sky}", f"{degrees} degrees and {sky}", f"{sky}, {degrees} degrees",
        f"{degrees}°C, {sky}",
    ])  # fmt: skip
    return Use(question, {"city": place}, result, f"It is {degrees} degrees and {sky} in {place}.")


def weather_in_unit(rng: random.Random) -> Use:
    use = weather(rng)
    unit = rng.choice(("celsius", "fahrenheit"))
    if unit == "fahrenheit" or rng.random() < 0.3:
        use.question += f" in {unit}"
    use.arguments["unit"] = unit
    return use


def two_numbers(sign: str) -> Callable[[random.Random], Use]:
    def use(rng: random.Random) -> Use:
        a, b = rng.randint(0, 200), rng.randint(0, 200)
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        said = {"+": "plus", "-": "minus", "*": "times"}[sign]
        question = rng.choice(["what is {e}", "how much is {e}", "calculate {e}", "{e}"]).format(
            e=f"{a} {rng.choice((sign, said))} {b}"
        )
        result = result_text({"result": value}, str(value), rng)
        return Use(question, {"a": a, "b": b}, result, f"{a} {sign} {b} = {value}")

    return use


def clock(rng: random.Random) -> Use:
    place = city(rng)
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    question = rng.choice([
        "what time is it in {c}", "what is the time in {c}", "tell me the time in {c}",
        "time in {c}",
        "what time is it now in {c}", "how late is it in {c}", "what is the current time in {c}",
        "do you know what time it is in {c}", "current time in {c}",
    ]).format(c=place)  # fmt: skip
    result = result_text({"time": time}, time, rng)
    return Use(question, {"city": place}, result, f"It is {time} in {place}.")


def calculator(rng: random.Random) -> Use:
    a, b = rng.randint(2, 999), rng.randint(2, 999)
    sign, said = rng.choice([("+", "plus"), ("-", "minus"), ("*", "times"), ("/", "divided by")])
    if sign == "/":
        a, value = a * b, a
    else:
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    middle = rng.choice([sign, sign, said])
    question = rng.choice(["what is {e}", "calculate {e}", "how much is {e}", "compute {e}", "{e}",
                           "please calculate {e}",
                           "work out {e}"]).format(e=f"{a} {middle} {b}")  # fmt: skip
    expression = f"{a} {sign} {b}"
    result = result_text({"result": value}, str(value), rng)
    return Use(question, {"expression": expression}, result, f"{expression} = {value}")


def search(rng: random.Random) -> Use:
    query = rng.choice([
        f"{word(rng)} {word(rng)}", f"{invented(rng)} {word(rng)}", f"{word(rng)} in {city(rng)}",
        f"the history of {city(rng)}", f"{person(rng)} {invented(rng)}", f"hotels in {city(rng)}",
        f"how to repair a {word(rng)}", f"best {word(rng)} of {invented(rng)}",
    ])  # fmt: skip
    question = rng.choice(["search for {q}", "search the web for {q}", "look up {q}", "google {q}",
                           "find {q}", "find information about {q}", "search {q}",
                           "can you look up {q}",
                           "please search for {q}"]).format(q=query)  # fmt: skip
    title = f"{invented(rng)} {word(rng)}"
    result = rng.choice([json.dumps({"results": [title]}), title, json.dumps({"title": title})])
    return Use(question, {"query": query}, result, f"I found this: {title}.")


def translate(rng: random.Random) -> Use:
    text, language = f"{word(rng)} {word(rng)}", rng.choice(LANGUAGES)
    text = word(rng) if rng.random() < 0.5 else text
    form = rng.choice(['translate "{t}" to {l}', 'translate "{t}" into {l}', "translate {t} to {l}",
                       'what is "{t}" in {l}', 'how do you say "{t}" in {l}'])  # fmt: skip
    question = form.format(t=text, l=language)
    foreign = f"{invented(rng).lower()} {invented(rng).lower()}"
    result = result_text({"translation": foreign}, foreign, rng)
    answer = f'"{text}" in {language} is "{foreign}".'
    return Use(question, {"text": text, "language": language}, result, answer)


def currency(rng: random.Random) -> Use:
    amount, (source, target) = rng.randint(1, 999), rng.sample(CURRENCIES, 2)
    value = rng.randint(1, 9999)
    question = rng.choice(["convert {a} {s} to {t}", "how much is {a} {s} in {t}", "{a} {s} in {t}",
                           "what is {a} {s} in {t}", "change {a} {s} into {t}"]).format(
                               a=amount, s=source, t=target)  # fmt: skip
    result = result_text({"result": value}, f"{value} {target}", rng)
    arguments = {"amount": amount, "from": source, "to": target}
    return Use(question, arguments, result, f"{amount} {source} are {value} {target}.")


def email(rng: random.Random) -> Use:
    name, text = person(rng), f"{word(rng)} {word(rng)} {word(rng)}"
    question = rng.choice(['send an email to {n} saying "{t}"', 'write to {n}: "{t}"',
                           'email {n} "{t}"', 'send {n} the message "{t}"', 'tell {n} "{t}"',
                           'send a message to {n} saying "{t}"', 'message {n}: "{t}"']).format(
                               n=name, t=text)  # fmt: skip
    result = rng.choice(["sent", json.dumps({"status": "sent"}), "ok", json.dumps({"ok": True})])
    return Use(question, {"to": name, "text": text}, result, f"I sent your message to {name}.")


def alarm(rng: random.Random) -> Use:
    time = f"{rng.randint(0, 23):02}:{rng.choice(('00', '15', '30', '45'))}"
    question = rng.choice(
        [
            "set an alarm for {t}",
            "wake me up at {t}",
            "wake me at {t}",
            "alarm at {t}",
            "set my alarm to {t}",
            "please set an alarm for {t}",
        ]
    )
    result = rng.choice(["ok", json.dumps({"status": "set"}), "set", json.dumps({"ok": True})])
    return Use(question.format(t=time), {"time": time}, result, f"The alarm is set for {time}.")


def population(rng: random.Random) -> Use:
    place, people = city(rng), rng.randint(1000, 9999999)
    question = rng.choice(["how many people live in {c}", "what is the population of {c}",
                           "population of {c}", "how many inhabitants does {c} have",
                           "how big is {c}"]).format(c=place)  # fmt: skip
    result = result_text({"population": people}, str(people), rng)
    return Use(question, {"city": place}, result, f"{place} has {people} inhabitants.")


def age(rng: random.Random) -> Use:
    name, years = person(rng), rng.randint(1, 99)
    question = rng.choice(["how old is {n}", "what is the age of {n}", "tell me the age of {n}",
                           "what is {n}'s age",
                           "find out how old {n} is"]).format(n=name)  # fmt: skip
    result = result_text({"age": years}, str(years), rng)
    return Use(question, {"name": name}, result, f"{name} is {years} years old.")


CITY = {"city": ("string", "Name of the city")}
NUMBERS = {"a": ("integer", "The first number"), "b": ("integer", "The second number")}
TOOLS = [
    Tool(("get_weather", "get_current_weather", "weather"),
         ("Get the weather in a city", "Get the current weather for a city", "Current weather"),
         CITY, weather),
    Tool(("get_time", "get_current_time", "current_time"),
         ("Get the time in a city", "Tell the current time in a city", "Current time"),
         CITY, clock),
    Tool(("calculator", "calculate", "evaluate"),
         ("Evaluate an arithmetic expression", "Calculate an expression", "Do arithmetic"),
         {"expression": ("string", "The expression")}, calculator),
    Tool(("search", "web_search", "search_web"),
         ("Search the web", "Search the internet for a query", "Find pages on the web"),
         {"query": ("string", "What to search for")}, search),
    Tool(("translate", "translate_text"),
         ("Translate a text", "Translate a text into another language"),
         {"text": ("string", "The text"), "language": ("string",
                   "The target language")}, translate),
    Tool(("convert_currency", "exchange"),
         ("Convert money", "Convert an amount of money to another currency"),
         {"amount": ("number", "How much"), "from": ("string", "From"), "to": ("string", "To")},
         currency),
    Tool(("send_message", "send_email"),
         ("Send a message to a person", "Send an email"),
         {"to": ("string", "Who gets it"), "text": ("string", "The message")}, email),
    Tool(("set_alarm", "set_timer"),
         ("Set an alarm", "Set an alarm for a time"),
         {"time": ("string", "When")}, alarm),
    Tool(("get_population", "population"),
         ("Get the population of a city", "How many people live in a city"),
         CITY, population),
    Tool(("get_age", "lookup_age"),
         ("Get the age of a person", "How old a person is"),
         {"name": ("string", "Name of the person")}, age),
    Tool(("get_current_weather", "get_weather", "get_temperature"),
         ("Get the current weather for a city", "Get the weather in a city in some unit"),
         CITY | {"unit": ("string", "celsius or fahrenheit")}, weather_in_unit),
    Tool(("add_two_numbers", "add", "sum"), ("Add two numbers",), NUMBERS, two_numbers("+")),
    Tool(("subtract_two_numbers",
          "subtract"), ("Subtract two numbers",), NUMBERS, two_numbers("-")),
    Tool(("multiply_two_numbers",
          "multiply"), ("Multiply two numbers",), NUMBERS, two_numbers("*")),
]  # fmt: skip
SHARES = [5, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1.5, 1, 0.5, 0.5]
