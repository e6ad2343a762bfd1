"""The finished GGUF behind llama.cpp and its own chat template, for `evaluate.py`."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jinja2
import llama_cpp
import numpy as np


@dataclass
class Answer:
    text: str
    stopped: bool  # by itself, with the end-of-turn token
    margin: float  # smallest lead of the best logit over the second, in nats
    tokens: int
    thought: str = ""  # its reasoning, where it was asked for and came to an end


class Model:
    """The GGUF behind its own chat template; `thinks` says whether its chats ask for reasoning."""

    thinks = False

    def __init__(self, path: Path, context: int = 2048):
        began = time.monotonic()
        self.llama = llama_cpp.Llama(str(path), n_ctx=context, n_threads=1, verbose=False)
        self.load_seconds = time.monotonic() - began
        source = self.llama.metadata["tokenizer.chat_template"]
        environment = jinja2.Environment()
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string(source)

    def encode(self, text: str, special: bool = True) -> list[int]:
        return self.llama.tokenize(text.encode(), add_bos=False, special=special)

    def complete(
        self, prompt: str, limit: int = 400, temperature: float = 0.0, seed: int = 0
    ) -> Answer:
        """Continue `prompt`, greedily when the temperature is 0."""
        rng = np.random.default_rng(seed)
        self.llama.reset()
        self.llama.eval(self.encode(prompt))
        tokens, margin = [], float("inf")
        while len(tokens) < limit:
            pointer = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
            logits = np.ctypeslib.as_array(pointer, shape=(self.llama.n_vocab(),))
            second, first = np.partition(logits, -2)[-2:]
            margin = min(margin, float(first - second))
            token = int(np.argmax(logits))
            if temperature:
                noise = rng.gumbel(size=logits.shape)
                token = int(np.argmax(logits / temperature + noise))
            if token == self.llama.token_eos():
                break
            tokens.append(token)
            self.llama.eval([token])
        text = self.llama.detokenize(tokens, special=False).decode(errors="replace")
        return Answer(text, len(tokens) < limit, margin, len(tokens))

    def chat(self, messages: list[dict], tool_list: list | None = None, **options) -> Answer:
        prompt = self.template.render(
            messages=messages,
            tools=tool_list,
            add_generation_prompt=True,
            enable_thinking=self.thinks,
        )
        answer = self.complete(prompt, **options)
        if not self.thinks:
            return answer
        thought, end, said = answer.text.partition("\n</think>\n")
        return replace(answer, text=said, thought=thought if end else "")

    def ask(self, question: str, system: str | None = None, **options) -> Answer:
        messages = [{"role": "user", "content": question}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        return self.chat(messages, **options)
