"""The model library: Ollama's layout on disk, the built-in demo model, and the process that reads
and writes them for all others.

`names` → `layout` and `builtin` → `catalog` (the answers) → `service` (the process);
`gguf_metadata` and `gguf_facts` read what a model's file says of itself, `modelfile` what the
library adds to it; `showing` puts it together for people. What a stranger may have made is not read
here, but by processes that may die of it (`looking`). `creating` makes models.

`disk` → `own_files`, `records`, `references`, `manifests` → `staging` → `pruning` → `writing`
(every change of the disk) → `orders`; `changes` runs them for whoever waits, and `uploads` takes
files.
"""
