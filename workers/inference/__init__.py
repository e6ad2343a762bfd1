"""The engine: from prompt tokens to text, one step at a time.

`thread` runs it beside the event loop; `engine` is the step loop; `sequence` is one request in it;
`sampling`, `detokenizer` and `stop` are the pure parts; `llama` and `vocabulary` are the modules
that touch llama.cpp, imported only once a worker was told what to load.
"""
