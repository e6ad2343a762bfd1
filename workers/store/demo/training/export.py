"""Write a checkpoint as GGUF: matrices in Q8_0, norms in F32, tokenizer and template inside."""

import json
from pathlib import Path

import gguf
import numpy as np
import tokenizer as vocabulary
from model import Shape
from tokenizers import Tokenizer

HERE = Path(__file__).parent
DESCRIPTION = (
    "A tiny chat model that Pronk's project trained from scratch on text of its own, "
    "so that everything works without a download. It knows Pronk, small talk and simple facts."
)


def describe(writer: gguf.GGUFWriter, shape: Shape, parameters: int) -> None:
    """What a person or a server reads about the model, and its hyperparameters."""
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name("Pronk Demo")
    writer.add_basename("Pronk-Demo")
    writer.add_author("The Pronk project")
    writer.add_description(DESCRIPTION)
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_size_label(f"{parameters / 1e6:.1f}M")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    """Tokens, their types, merges, special ids and the chat template."""
    types = {
        **dict.fromkeys(vocabulary.CONTROL, gguf.TokenType.CONTROL),
        **dict.fromkeys(vocabulary.TAGS + vocabulary.THOUGHT, gguf.TokenType.USER_DEFINED),
    }
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([types.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(vocabulary.END_OF_TEXT)
    writer.add_eos_token_id(vocabulary.TURN_END)
    writer.add_eot_token_id(vocabulary.TURN_END)
    writer.add_pad_token_id(vocabulary.END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template((HERE / "chat_template.jinja").read_text())


LAYER_MATRICES = {
    "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


def neighbours(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder the outputs of an (in, out) matrix: rotary pairs (i, i + half) side by side."""
    order = np.arange(matrix.shape[1]).reshape(-1, 2, head_dim // 2).swapaxes(1, 2).reshape(-1)
    return matrix[:, order]


def tensors(params: dict[str, np.ndarray], shape: Shape):
    """Pairs of GGUF name and array, matrices as (out, in)."""
    yield "token_embd.weight", params["embed"]
    yield "output_norm.weight", params["out_norm"]
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", params["attn_norm"][i]
        yield f"blk.{i}.ffn_norm.weight", params["ffn_norm"][i]
        for ours, theirs in LAYER_MATRICES.items():
            matrix = params[ours][i]
            if ours in ("q", "k"):
                matrix = neighbours(matrix, shape.head_dim)
            yield f"blk.{i}.{theirs}.weight", matrix.T


def export(params: dict[str, np.ndarray], shape: Shape, tokenizer: Tokenizer, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, shape, sum(array.size for array in params.values()))
    add_tokenizer(writer, tokenizer)
    for name, array in tensors(params, shape):
        array = np.ascontiguousarray(array, dtype=np.float32)
        kind = gguf.GGMLQuantizationType.F32
        if array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            array = gguf.quants.quantize(array, kind)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
