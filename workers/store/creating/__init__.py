"""Making models: of other models, of files that were uploaded, and of texts and parameters.

`creation` is the whole; `parts` are the files that a model is made of, `texts` and `parameters`
what is said beside them, `manifest` how Ollama has it written down. Files are looked at (`looking`)
and quantized in processes of their own: `quantize_file` is the program, `quantization` asks it.

Nothing is imported here, so that this program starts quickly.
"""
