"""Small chat templates in the manner of many families, written for these tests."""

from __future__ import annotations

from dataclasses import dataclass

_TURNS = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|turn|>model\\n' }}ANSWER{{- '<|over|>\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|turn|>tool\\n' + m.content + '<|over|>\\n' }}
{%- else %}
{{- '<|turn|>' + m.role + '\\n' + m.content + '<|over|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>model\\n' }}PROMPT{% endif %}"""

_TOOLS = (
    "{%- if tools %}{{ '<|turn|>system\\nTools: ' + tools | tojson + '<|over|>\\n' }}{% endif %}"
)


def _chat(answer: str, prompt: str = "", head: str = _TOOLS) -> str:
    return head + _TURNS.replace("ANSWER", answer).replace("PROMPT", prompt)


_THINK = (
    "{%- if m.reasoning_content %}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}"
    "{%- endif %}"
)
_TEXT = "{{- m.content or '' }}"
_NO_THINKING = "{%- if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"


def _calls(each: str, before: str = "", after: str = "", between: str = "") -> str:
    """Calls, each as `each` has it, which knows `f`, and the call itself as `c`."""
    return (
        "{%- if m.tool_calls %}"
        f"{before}"
        "{%- for c in m.tool_calls %}{%- set f = c.function %}"
        f"{each}"
        f"{{%- if not loop.last %}}{between}{{% endif %}}"
        "{%- endfor %}"
        f"{after}"
        "{%- endif %}"
    )


def _lit(text: str) -> str:
    return "{{- '" + text.replace("\n", "\\n") + "' }}"


_TAGGED_OBJECT = (
    _lit("<tool_call>\n")
    + ("""{{- '{"name": "' + f.name + '", "arguments": ' + f.arguments | tojson + '}' }}""")
    + _lit("\n</tool_call>")
)

HERMES = _chat(_THINK + _TEXT + _calls(_TAGGED_OBJECT, between=_lit("\n")), _NO_THINKING)
"""ChatML with an object in tags, and reasoning that a request can turn off."""

FUNCTION_OBJECT = _chat(
    _TEXT
    + _calls(
        _lit("<call>")
        + """{%- set written = {"name": f.name, "arguments": f.arguments | tojson} %}"""
        + """{{- {"type": "function", "id": c.id, "function": written} | tojson }}"""
        + _lit("</call>")
    )
)
"""The object of OpenAI's API, arguments as text."""

LIST_WITH_IDS = _chat(
    _TEXT
    + _calls(
        """{{- '{"name": "' + f.name + '", "arguments": ' + f.arguments | tojson }}"""
        """{{- ', "id": "' + c.id + '"}' }}"""
        "{%- if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}",
        _lit("[TOOL_CALLS]["),
        _lit("]"),
        _lit(", "),
    )
)
"""Mistral's older way."""

NAME_THEN_ARGUMENTS = _chat(
    _TEXT
    + _calls(
        _lit("[TOOL_CALLS]")
        + "{{- f.name + '[CALL_ID]' + c.id + '[ARGS]' + f.arguments | tojson }}"
    )
)
"""Mistral's newer way."""

BARE_OBJECT = _chat(
    "{%- if m.tool_calls %}"
    "{%- if m.tool_calls | length > 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    "{%- set f = m.tool_calls[0].function %}"
    """{{- '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}' }}"""
    "{%- else %}" + _TEXT + "{%- endif %}"
)
"""Llama 3.1's: no marker at all, one call, no text beside it."""

BARE_LIST = _chat(
    _TEXT
    + _calls(
        """{{- {"name": f.name, "arguments": f.arguments} | tojson }}""",
        _lit("["),
        _lit("]"),
        _lit(", "),
    )
)

NAME_IN_TAG = _chat(
    _TEXT
    + _calls(
        _lit("<function=") + "{{- f.name + '>' + f.arguments | tojson }}" + _lit("</function>")
    )
)

NUMBERED = _chat(
    _TEXT
    + _calls(
        _lit("<|call_begin|>functions.")
        + "{{- f.name ~ ':' ~ loop.index0 ~ '<|call_argument_begin|>' ~ f.arguments | tojson }}"
        + _lit("<|call_end|>"),
        _lit("<|calls_begin|>"),
        _lit("<|calls_end|>"),
    )
)
"""Kimi's: name and number in one."""

FENCED = _chat(
    _TEXT
    + _calls(
        _lit("<｜call▁begin｜>function<｜sep｜>")
        + "{{- f.name }}"
        + _lit("\n```json\n")
        + "{{- f.arguments }}"
        + _lit("\n```<｜call▁end｜>"),
        _lit("<｜calls▁begin｜>"),
        _lit("<｜calls▁end｜>"),
        _lit("\n"),
    ).replace("f.arguments", "('' + f.arguments)"),
    _lit("<think>\n"),
    head="",
)
"""DeepSeek R1's: arguments as text in a code block; the prompt opens the reasoning, which no
history keeps; tools are not offered by the template."""

_PARAMETER = (
    _lit("<parameter=")
    + "{{- k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' }}"
)
TAGGED = _chat(
    _TEXT
    + _calls(
        _lit("<tool_call>\n<function=")
        + "{{- f.name + '>\\n' }}{%- for k, v in f.arguments | items %}"
        + _PARAMETER
        + "{%- endfor %}"
        + _lit("</function>\n</tool_call>"),
        between=_lit("\n"),
    )
)
"""Qwen3-Coder's."""

KEYS_AND_VALUES = _chat(
    _THINK.replace("\\n", "")
    + _TEXT
    + _calls(
        _lit("\n<tool_call>")
        + "{{- f.name + '\\n' }}{%- for k, v in f.arguments | items %}"
        + "{{- '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}"
        + "{{- (v if v is string else v | tojson) + '</arg_value>\\n' }}{%- endfor %}"
        + _lit("</tool_call>")
    )
)
"""GLM's."""

TYPED_PARAMETERS = _chat(
    _TEXT
    + _calls(
        _lit('<invoke name="')
        + "{{- f.name + '\">\\n' }}{%- for k, v in f.arguments | items %}"
        + "{{- '<parameter name=\"' + k + '\" string=\"' }}"
        + "{{- ('true' if v is string else 'false') + '\">' }}"
        + "{{- (v if v is string else v | tojson) + '</parameter>\\n' }}{%- endfor %}"
        + _lit("</invoke>\n"),
        _lit("<calls>\n"),
        _lit("</calls>"),
    )
)
"""DeepSeek V3.2's: a parameter says whether it is a text."""

ACTIONS = _chat(
    "{%- if m.tool_calls %}"
    "{%- if m.reasoning_content %}"
    "{{- '<|START_THINKING|>' + m.reasoning_content + '<|END_THINKING|>' }}{% endif %}"
    + _calls(
        """{{- '\\n    {"tool_call_id": "' ~ loop.index0 ~ '", "tool_name": "' }}"""
        """{{- f.name ~ '", "parameters": ' ~ f.arguments | tojson ~ '}' }}""",
        _lit("<|START_ACTION|>["),
        _lit("\n]<|END_ACTION|>"),
        _lit(","),
    )
    + "{%- else %}"
    + _lit("<|START_RESPONSE|>")
    + _TEXT
    + _lit("<|END_RESPONSE|>")
    + "{%- endif %}",
    "{%- if not enable_thinking %}{{ '<|START_THINKING|><|END_THINKING|>' }}{% endif %}",
)
"""Command R7B's: text between markers too, and no text beside calls."""

_PYTHON = (
    "{{- f.name + '(' }}{%- for k, v in f.arguments | items %}"
    "{{- k ~ '=' ~ (v | tojson) }}{%- if not loop.last %}{{ ', ' }}{% endif %}"
    "{%- endfor %}{{- ')' }}"
)
PYTHON_LIST = _chat(
    _TEXT + _calls(_PYTHON, _lit("<|calls_start|>["), _lit("]<|calls_end|>"), _lit(", "))
)
BARE_PYTHON = _chat(_TEXT + _calls(_PYTHON, _lit("["), _lit("]"), _lit(", ")))
"""Llama 4's."""

PYTHON_LINES = _chat(_TEXT + _calls(_PYTHON, _lit("<calls>\n"), _lit("\n</calls>"), _lit("\n")))
"""OLMo 3's."""

NAME_AS_KEY = _chat(
    _TEXT
    + _calls(
        """{{- '{"' + f.name + '": ' + f.arguments | tojson + '}' }}""",
        _lit("<|tools_prefix|>["),
        _lit("]<|tools_suffix|>"),
        _lit(", "),
    )
)
"""Apertus's."""

RECIPIENTS = _chat(
    "{%- if m.content %}{{ 'all\\n' + m.content }}{% endif %}"
    "{%- if m.tool_calls %}{%- for c in m.tool_calls %}"
    "{%- if m.content or not loop.first %}{{ '>>>' }}{% endif %}"
    "{{- c.function.name + '\\n' + c.function.arguments | tojson }}"
    "{%- endfor %}{%- endif %}"
).replace("<|turn|>model\\n", "<|turn|>model\\n>>>")
"""Functionary's: the prompt ends with the marker that announces who is spoken to."""

PROMPT_THINKS = _chat(
    "{%- if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{%- else %}" + _TEXT + "{%- endif %}" + _calls(_TAGGED_OBJECT, between=_lit("\n")),
    _lit("<think>\n"),
)
"""The prompt always opens the reasoning, and no history keeps it."""

LATEST_REASONING = _chat(
    "{%- if loop.index0 > ns.last and m.reasoning_content %}"
    "{{- '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    + _TEXT
    + _calls(_TAGGED_OBJECT, between=_lit("\n")),
    "{{- '<think></think>' if enable_thinking is false else '<think>' }}",
    head=_TOOLS + "{%- set ns = namespace(last=-1) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{% endif %}{%- endfor %}",
)
"""Reasoning is kept only behind the last question."""

BRACKETS = _chat(
    "{%- if m.reasoning_content %}{{ '[THINK]' + m.reasoning_content + '[/THINK]' }}{% endif %}"
    + _TEXT
    + _calls("{{- '[TOOL_CALLS]' + f.name + '[ARGS]' + f.arguments | tojson }}")
)
"""Magistral's."""

PROSE_THOUGHTS = _chat(
    "{%- if m.reasoning_content %}"
    "{{- 'Here is my thought process: ' + m.reasoning_content + '\\nHere is my response: ' }}"
    "{%- endif %}" + _TEXT
)

CODE_BLOCK = _chat(
    _TEXT
    + _calls(
        """{{- '    {\\n        "tool_name": "' + f.name + '",\\n        "parameters": ' }}"""
        """{{- f.arguments | tojson(indent=4) + '\\n    }' }}""",
        _lit("Action: ```json\n[\n"),
        _lit("\n]```"),
        _lit(",\n"),
    )
)
"""Command R's."""

CALLS_FIRST = _chat(
    _calls(
        _PYTHON,
        _lit("<|calls_start|>\n```python\n"),
        _lit("\n```\n<|calls_end|>\n"),
        _lit("\n"),
    )
    + _TEXT
)
"""MiniCPM's: Python in a code block, and text behind it."""

ID_BEFORE_NAME = _chat(
    _TEXT
    + _calls(
        "{{- '<call id=' ~ c.id ~ ' number=' ~ loop.index ~ ' name=' ~ f.name ~ '>' }}"
        "{{- f.arguments | tojson ~ '</call>' }}"
    )
)

ANSWER_IN_TAGS = _chat(
    _THINK
    + _lit("<answer>\n")
    + _TEXT
    + _calls(
        _lit("<tool_call>")
        + "{{- f.name + '\\n```json\\n' + f.arguments | tojson + '\\n```</tool_call>' }}",
        _lit("<tool_calls>"),
        _lit("</tool_calls>"),
        _lit("\n"),
    )
    + _lit("\n</answer>")
)
"""Hunyuan's: text and calls within one pair of markers."""

OBJECT_AROUND_ALL = _chat(
    _TEXT
    + _calls(
        """{{- {"name": f.name, "arguments": f.arguments} | tojson }}""",
        _lit('{"tool_calls": ['),
        _lit("]}"),
        _lit(", "),
    )
)

QUOTED_TEXTS = _chat(
    _TEXT
    + _calls(
        "{{- '<call ' + f.name + '>' }}{%- for k, v in f.arguments | items %}"
        "{{- '<with ' + k + '>' + v | tojson + '</with>' }}{%- endfor %}" + _lit("</call>")
    )
)

ASKED_IN_WORDS = _chat(
    _TEXT,
    head="{%- if thinking %}{{ '<|turn|>system\\nWrite your thoughts after \"Here is my thought "
    'process:" and your answer after "Here is my response:".<|over|>\\n\' }}{% endif %}',
)
"""Granite 3.2's."""

INSTRUCTED = _chat(
    _TEXT,
    head="{%- if tools %}{{ '<|turn|>system\\nAnswer only with <|tool_call|> and a JSON list of "
    "tools used. ' + tools | tojson + '<|over|>\\n' }}{% endif %}"
    "{%- if thinking %}{{ '<|turn|>system\\nThoughts go between <think></think>, what you say "
    "between <response></response>.<|over|>\\n' }}{% endif %}",
)
"""Granite 3's: calls of earlier messages are left out; the model is told what to do."""

PLAIN = _chat(_TEXT, head="")

CONTENT_IN_PARTS = HERMES.replace("m.content", "m.content[0].text")
"""As templates of models have it that see, too."""

ALTERNATING = (
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{% endif %}{%- endfor %}" + PLAIN
)

GO_CHATML = """\
{{- if .Tools }}<|turn|>system
{{ range .Tools }}{{ . }}
{{ end }}<|over|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|turn|>user
{{ .Content }}<|over|>
{{ else if eq .Role "assistant" }}<|turn|>model
{{ if and .Thinking $.Think }}<think>{{ .Thinking }}</think>
{{ end }}{{ .Content }}
{{- range .ToolCalls }}<tool_call>
{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
</tool_call>{{ end }}{{ if not $last }}<|over|>
{{ end }}
{{- else if eq .Role "tool" }}<|turn|>tool
{{ .Content }}<|over|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|turn|>model
{{ if and $.IsThinkSet (not $.Think) }}<think></think>
{{ end }}{{ end }}
{{- end }}"""

GO_LIST = """\
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}[INST] {{ if and $.Tools $last }}[TOOLS] {{ $.Tools }}[/TOOLS] {{ end }}
{{- .Content }}[/INST]
{{- else if eq .Role "assistant" }}
{{- if .Content }} {{ .Content }}</s>
{{- else if .ToolCalls }}[TOOL_CALLS] [
{{- range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{- end }}]</s>
{{- end }}
{{- else if eq .Role "tool" }}[TOOL_RESULTS] {"content": {{ .Content }}} [/TOOL_RESULTS]
{{- end }}
{{- end }}"""


GO_BARE = """\
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|turn|>user
{{ if and $.Tools $last }}Answer with a JSON object if one of these is of use: {{ $.Tools }}
{{ end }}{{ .Content }}<|over|>
{{ else if eq .Role "assistant" }}<|turn|>model
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "parameters": {{ .Function.Arguments }}}
{{- else }}{{ .Content }}
{{- end }}{{ if not $last }}<|over|>
{{ end }}
{{- else if eq .Role "tool" }}<|turn|>tool
{{ .Content }}<|over|>
{{ end }}
{{- if and $last (ne .Role "assistant") }}<|turn|>model
{{ end }}
{{- end }}"""


@dataclass(frozen=True, slots=True)
class Family:
    """A template, and which of the standard conversations it does not write."""

    name: str
    source: str
    left_out: frozenset[str] = frozenset()
    go: bool = False


_REASONING = {
    "reasoning before text",
    "reasoning before a call",
    "reasoning, text and two calls",
}
_CALLS = {
    "one call",
    "two calls",
    "a call after text",
    "nested arguments and unicode",
    "a call without arguments",
}

FAMILIES = [
    Family("hermes", HERMES),
    Family("content in parts", CONTENT_IN_PARTS),
    Family("function object", FUNCTION_OBJECT, frozenset(_REASONING)),
    Family("list with ids", LIST_WITH_IDS, frozenset(_REASONING)),
    Family("name, id, arguments", NAME_THEN_ARGUMENTS, frozenset(_REASONING)),
    Family("bare object", BARE_OBJECT, frozenset(_REASONING | {"two calls", "a call after text"})),
    Family("bare list", BARE_LIST, frozenset(_REASONING)),
    Family("name in tag", NAME_IN_TAG, frozenset(_REASONING)),
    Family("numbered", NUMBERED, frozenset(_REASONING)),
    Family("fenced", FENCED),
    Family("tagged", TAGGED, frozenset(_REASONING)),
    Family("keys and values", KEYS_AND_VALUES),
    Family("typed parameters", TYPED_PARAMETERS, frozenset(_REASONING)),
    Family("actions", ACTIONS, frozenset({"a call after text", "reasoning, text and two calls"})),
    Family("python list", PYTHON_LIST, frozenset(_REASONING)),
    Family("bare python", BARE_PYTHON, frozenset(_REASONING)),
    Family("python lines", PYTHON_LINES, frozenset(_REASONING)),
    Family("name as key", NAME_AS_KEY, frozenset(_REASONING)),
    Family("code block", CODE_BLOCK, frozenset(_REASONING)),
    Family("calls first", CALLS_FIRST, frozenset(_REASONING)),
    Family("id before name", ID_BEFORE_NAME, frozenset(_REASONING)),
    Family("answer in tags", ANSWER_IN_TAGS),
    Family("object around all", OBJECT_AROUND_ALL, frozenset(_REASONING)),
    Family("quoted texts", QUOTED_TEXTS, frozenset(_REASONING)),
    Family(
        "asked in words",
        ASKED_IN_WORDS,
        frozenset(_CALLS | _REASONING) - {"reasoning before text"},
    ),
    Family("recipients", RECIPIENTS, frozenset(_REASONING)),
    Family("prompt thinks", PROMPT_THINKS),
    Family("latest reasoning", LATEST_REASONING),
    Family("brackets", BRACKETS),
    Family(
        "prose thoughts", PROSE_THOUGHTS, frozenset(_CALLS | _REASONING) - {"reasoning before text"}
    ),
    Family("instructed", INSTRUCTED),
    Family("plain", PLAIN, frozenset(_CALLS | _REASONING)),
    Family("alternating", ALTERNATING, frozenset(_CALLS | _REASONING)),
    Family("go chatml", GO_CHATML, go=True),
    Family("go bare", GO_BARE, frozenset(_REASONING | {"a call after text"}), go=True),
    Family(
        "go list",
        GO_LIST,
        frozenset(_REASONING | {"a call after text"}),
        go=True,
    ),
]
