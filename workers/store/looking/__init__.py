"""Looking at what may come from anybody, files and templates, in processes that may die of it.

`throwaway` starts a process that holds the file and next to nothing else, and `confinement` is
what the process then gives up. `read_headers` is the program for whatever lies in the library,
`reading` asks it, and `headers` remembers what it said; `inspect_file` and `inspection` are the
same for files that a model is to be made of, with the rules of `gguf_check`. `templates` remembers
what templates are. Who lacks any of it says so (`finding`), and `looker` has it found out.

Nothing is imported here, so that those programs start quickly.
"""
