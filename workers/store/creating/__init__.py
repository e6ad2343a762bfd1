"""Making models: of other models, of files that were uploaded, and of texts and parameters.

`creation` is the whole; `parts` are the files that a model is made of, `texts` and `parameters`
what is said beside them, `manifest` how Ollama has it written down. What reads or quantizes a file
from anybody does so in a process of its own (`throwaway`): `inspect_file` and `quantize_file` are
the programs, `inspection` and `quantization` ask them.

Nothing is imported here, so that those programs start quickly.
"""
