"""The engine: from requests to tokens, many at a time, one step after the other.

A request passes through three threads. `preparation` turns it into a `sequence` in a pool beside
the engine; `thread` runs the `engine`, which only computes and chooses tokens; `replica` lives on
the worker's event loop and makes text and messages of them while the next step computes.

- the step: `engine`, with the pure parts `batching` (who computes how much), `slots` (who sits
  where, and what is known already) and `shift` (what a full context forgets), and `reuse`, which
  computes nothing twice, on a `context` that fills a `batch`
- choosing: `sampling` is the plan, `samplers` carry it out with `candidates` and `mirostat`,
  `defaults` come from the model, `logprobs` tell how sure it was
- a form for the answer: `grammars`, `token_table`, `constraints`
- the text: `answer`, `detokenizer`, `stop`
- vectors and scores: `embedding_inputs`, `embedder`, `embedding_context`
- the model: `llama`, `vocabulary`, `segments`, `footprint`, `capacity`, `native_log`
- where it lies: `ggml` knows the devices, `offload` takes those that were given, `plan` is the
  context on them, `placed` tells what lies where, and `dry_run` what would

Modules that import llama_cpp are imported only once a worker was told what to do.
"""
