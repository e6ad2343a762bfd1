"""Tool calls: which tool, with arguments copied from the question, and the answer afterwards."""

import json
import random
from dataclasses import dataclass, replace

import facts
from phrasing import first_upper, typed
from skills.capitals import CAPITALS, country_name
from skills.capitals import thought as capital_thought
from skills.toolbox import SHARES, TOOLS, Tool, Use
from talk import Talk, turns

ALIASES = {
    "city": ("city", "city", "location", "place", "town"),
    "query": ("query", "query", "q", "text"),
    "expression": ("expression", "expression", "formula"),
    "unit": ("unit", "format", "units"),
    "name": ("name", "person"),
    "to": ("to", "recipient"),
    "text": ("text", "message", "content"),
}
FOUND = "The result tells what was asked for."


@dataclass(frozen=True)
class Offered:
    """A tool under the name, and with the names of parameters, that it has in one conversation."""

    tool: Tool
    name: str
    keys: dict[str, str]

    def arguments(self, use: Use) -> dict[str, object]:
        return {self.keys[key]: value for key, value in use.arguments.items()}


def shuffled_keys(value: object, rng: random.Random) -> object:
    """Clients and template engines disagree on the order of keys; the model should not care."""
    if not isinstance(value, dict):
        return value
    keys = sorted(value) if rng.random() < 0.5 else list(value)
    return {key: shuffled_keys(value[key], rng) for key in keys}


def schema(offered: Offered, rng: random.Random) -> dict:
    """The description of a tool as clients send it, with or without the optional parts."""
    described = rng.random() < 0.5
    properties = {}
    for key, (kind, text) in offered.tool.properties.items():
        properties[offered.keys[key]] = {"type": kind, "description": text} if described else {
            "type": kind}  # fmt: skip
        if key == "unit" and rng.random() < 0.6:
            properties[offered.keys[key]]["enum"] = ["celsius", "fahrenheit"]
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    if rng.random() < 0.2:
        del parameters["required"]
    description = rng.choice(offered.tool.descriptions)
    function = {"name": offered.name, "description": description, "parameters": parameters}
    return shuffled_keys({"type": "function", "function": function}, rng)


def offer(rng: random.Random) -> tuple[Offered, list[dict]]:
    """A tool to be used, and the list of tools in which it is offered."""
    chosen = rng.choices(TOOLS, SHARES)[0]
    tools = [chosen]
    for other in rng.sample(TOOLS, rng.choice((0, 0, 0, 1, 1, 2))):
        if other.names[0] not in (name for tool in tools for name in tool.names):
            tools.append(other)
    rng.shuffle(tools)
    offered = []
    for tool in tools:
        keys = {key: rng.choice(ALIASES.get(key, (key,))) for key in tool.properties}
        if len(set(keys.values())) < len(keys):
            keys = {key: key for key in keys}
        offered.append(Offered(tool, rng.choice(tool.names), keys))
    return offered[tools.index(chosen)], [schema(each, rng) for each in offered]


def call(rng: random.Random) -> Talk:
    """A question, the call, and mostly the result and an answer; sometimes a second round."""
    offered, tools = offer(rng)
    messages = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        use = offered.tool.use(rng)
        question = typed(use.question, rng, exact=True)
        # As text: what the model says keeps its one spacing, however tools are described.
        function = {"name": offered.name, "arguments": json.dumps(
            offered.arguments(use), ensure_ascii=False)}  # fmt: skip
        messages += [
            {"role": "user", "content": question},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": function}],
                "thinking": choice(offered),
            },
        ]
        if rng.random() < 0.3:
            break
        messages += [
            {"role": "tool", "content": use.result},
            {"role": "assistant", "content": use.answer, "thinking": FOUND},
        ]
    return Talk(messages, tools=tools)


def choice(offered: Offered) -> str:
    """What to think before a call."""
    wanted = ", ".join(offered.keys.values())
    return f"{offered.name} can do this. It needs from the user: {wanted}."


def not_needed(rng: random.Random) -> Talk:
    """Tools are offered, and the question needs none of them."""
    _, tools = offer(rng)
    known = facts.load()
    fact = rng.choices(known, [fact.weight for fact in known])[0]
    question, answer, thought = rng.choice(fact.questions), fact.answer, fact.thought
    if rng.random() < 0.2:
        country = country_name(rng)
        question = f"what is the capital of {country}"
        answer = f"The capital of {country} is {CAPITALS[country]}."
        thought = capital_thought(country)
    user = first_upper(typed(question, rng))
    talk = turns(user, answer, thought=f"No tool is needed for this. {thought}")
    return replace(talk, tools=tools)


SKILLS = [(6.0, call), (1.5, not_needed)]
