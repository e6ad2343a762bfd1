"""Chat templates in the manner of several families, short, for tests of everything about them."""

from __future__ import annotations

TAGS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set content = m.content %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if m.reasoning_content %}
            {{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in m.tool_calls or [] %}
            {%- set f = call.function %}
            {{- '\\n<tool_call>\\n{"name": "' + f.name + '", "arguments": ' }}
            {{- f.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + m.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
"""Calls and reasoning in tags, and a switch for reasoning."""

BRACKETS = """\
{%- if messages[0].role == 'system' %}
    {%- set rules = messages[0].content %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(turn=0) %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role in ('user', 'assistant') and not m.tool_calls %}
        {%- if (m.role == 'user') != (ns.turn % 2 == 0) %}
            {{- raise_exception('user and assistant must take turns') }}
        {%- endif %}
        {%- set ns.turn = ns.turn + 1 %}
    {%- endif %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.last %}{{- '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
        {{- '[INST]' + (rules + '\\n\\n' if rules and loop.last else '') + m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[CALLS][' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{- raise_exception('ids have 9 letters') }}{% endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif m.role == 'assistant' %}
        {{- m.content + eos_token }}
    {%- elif m.role == 'tool' %}
        {%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}
        {{- '[RESULT]' + m.content + ' of ' + m.tool_call_id + '[/RESULT]' }}
    {%- else %}
        {{- raise_exception('who is that?') }}
    {%- endif %}
{%- endfor %}"""
"""Turns that must alternate, ids of nine letters, and the system message in the last question."""

TURNS = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system messages') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
    {{- m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"""
"""Neither system messages nor tools."""

HEADERS = """\
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {{- '<|header|>ipython<|/header|>' + m.content | tojson + '<|eot|>' }}
    {%- elif 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{% endif %}
        {%- set f = m.tool_calls[0].function %}
        {{- '<|header|>assistant<|/header|>{"name": "' + f.name + '", "parameters": ' }}
        {{- f.arguments | tojson + '}<|eot|>' }}
    {%- else %}
        {{- '<|header|>' + m.role + '<|/header|>' + m.content | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{- tool | tojson(indent=4) }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|header|>assistant<|/header|>' }}{% endif %}"""
"""One call at a time, and no text beside it."""

PARAMETERS = """\
{%- for tool in tools or [] %}
    {{- '<function>' ~ tool.function.name }}
    {%- for name, one in tool.function.parameters.properties | items %}
        {%- for key in one %}{{- '\\n<' ~ key ~ '>' ~ one[key] ~ '</' ~ key ~ '>' }}{% endfor %}
    {%- endfor %}
    {{- '</function>\\n' }}
{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<function=' + call.function.name + '>\\n' }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<parameter=' + key + '>' + value | string + '</parameter>\\n' }}
        {%- endfor %}
        {{- '</function>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""Each argument in tags; names of properties become tags, too."""

LISTED = """\
{%- for m in messages %}
    {{- '<|' + m.role + '|>' }}
    {%- for part in m.content %}{% if part.type == 'text' %}{{- part.text }}{% endif %}{% endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
"""Contents are lists, and roles stand in the middle of tokens."""

TEXTUAL = """\
{%- for m in messages %}
    {{- '<|' + m.role + '|>' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
        {{- '>>>' + call.function.name + '\\n' + call.function.arguments }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
"""Arguments of calls are JSON text."""

OPENED = """\
{%- for m in messages %}
    {{- ']~b]' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and '</think>' in m.content %}
        {{- m.content.split('</think>')[-1] }}
    {%- else %}{{- m.content }}{% endif %}
    {{- '[e~[\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- ']~b]assistant\\n<think>\\n' }}{% endif %}"""
"""The prompt begins to reason, and there is no switch."""

ALL = (TAGS, BRACKETS, TURNS, HEADERS, PARAMETERS, LISTED, TEXTUAL, OPENED)
