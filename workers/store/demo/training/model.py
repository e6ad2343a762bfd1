"""The demo model: a small llama-architecture transformer in plain JAX.

Weights are a flat dictionary. The layers' matrices are stacked on a leading axis, (L, in, out);
`export.py` unstacks and transposes them to the layout that GGUF wants.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. All widths are multiples of 32, the block of Q8_0."""

    vocab: int = 2050
    width: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 704
    context: int = 2048
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def init(shape: Shape, key: jax.Array) -> Params:
    """Random weights; the matrices that write into the residual stream start smaller."""
    depth, width, kv_width = shape.layers, shape.width, shape.kv_heads * shape.head_dim
    sizes = {
        "embed": (shape.vocab, width),
        "q": (depth, width, width),
        "k": (depth, width, kv_width),
        "v": (depth, width, kv_width),
        "o": (depth, width, width),
        "gate": (depth, width, shape.hidden),
        "up": (depth, width, shape.hidden),
        "down": (depth, shape.hidden, width),
    }
    params = {}
    for subkey, (name, size) in zip(jax.random.split(key, len(sizes)), sizes.items(), strict=True):
        scale = 0.02 if name == "embed" else size[-2] ** -0.5
        if name in ("o", "down"):
            scale *= (2 * depth) ** -0.5
        params[name] = scale * jax.random.normal(subkey, size, jnp.float32)
    params["attn_norm"] = jnp.ones((depth, width))
    params["ffn_norm"] = jnp.ones((depth, width))
    params["out_norm"] = jnp.ones((width,))
    return params


def count(params: Params) -> int:
    """Number of weights."""
    return sum(array.size for array in params.values())


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotations(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotary angles, each (context, head_dim / 2)."""
    half = shape.head_dim // 2
    angles = np.outer(np.arange(shape.context), shape.rope_base ** (-np.arange(half) / half))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotary embedding of `x` (batch, time, heads, head_dim): channel i turns with i + head_dim/2.

    llama.cpp pairs neighbours instead; `export.py` reorders the channels accordingly.
    """
    left, right = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention of `q` (batch, time, heads, head_dim) over fewer heads of `k` and `v`."""
    groups = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, groups, axis=2), jnp.repeat(v, groups, axis=2)
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    scores = q @ jnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.swapaxes(weights @ v, 1, 2)


def forward(params: Params, shape: Shape, tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """Hidden states (batch · time, width) of `tokens` (batch, time) under causal attention.

    Batch and time are one axis wherever they can be: on a CPU, XLA is twice as fast at the
    gradients of such plain matrix products.
    """
    batch, time = tokens.shape
    x = params["embed"][tokens.reshape(-1)]
    cos, sin = (jnp.asarray(table)[positions][:, :, None] for table in rotations(shape))
    for i in range(shape.layers):
        y = rms_norm(x, params["attn_norm"][i], shape.norm_eps)
        q = (y @ params["q"][i]).reshape(batch, time, shape.heads, shape.head_dim)
        k = (y @ params["k"][i]).reshape(batch, time, shape.kv_heads, shape.head_dim)
        v = (y @ params["v"][i]).reshape(batch, time, shape.kv_heads, shape.head_dim)
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        x = x + attend(q, k, v).reshape(x.shape) @ params["o"][i]
        y = rms_norm(x, params["ffn_norm"][i], shape.norm_eps)
        x = x + (jax.nn.silu(y @ params["gate"][i]) * (y @ params["up"][i])) @ params["down"][i]
    return rms_norm(x, params["out_norm"], shape.norm_eps)


def loss(
    params: Params,
    shape: Shape,
    tokens: jax.Array,
    positions: jax.Array,
    weights: jax.Array,
) -> jax.Array:
    """Weighted mean of the next-token loss in nats; `weights[:, t]` counts the token at `t`."""
    hidden = forward(params, shape, tokens, positions)
    logits = hidden @ params["embed"].T
    target = jnp.take_along_axis(logits, jnp.roll(tokens, -1, axis=1).reshape(-1, 1), axis=-1)[:, 0]
    nats = jax.nn.logsumexp(logits, axis=-1) - target
    weights = jnp.roll(weights.at[:, 0].set(0.0), -1, axis=1).reshape(-1)
    return jnp.sum(nats * weights) / jnp.maximum(jnp.sum(weights), 1.0)
