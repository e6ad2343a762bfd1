"""The model library: Ollama's layout on disk, the built-in demo model, and the process that reads
them for all others.

`names` → `layout` and `builtin` → `catalog` (the answers) → `service` (the process);
`gguf_metadata` and `gguf_facts` read what a model's file says of itself, `modelfile` what the
library adds to it.
"""
