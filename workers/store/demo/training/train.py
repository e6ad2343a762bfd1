"""Rebuild the demo model from the seed: tokenizer, training, `../demo.gguf`.

`python train.py [--seed 1] [--out ../demo.gguf]`

A checkpoint is written every few hundred steps; `--resume` goes on from it. Where there is none,
`--from FILE` begins with a GGUF that cannot reason yet, its weights and its tokenizer, at the first
stage that teaches that.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import corpus
import jax
import jax.numpy as jnp
import numpy as np
import tokenizer as vocabulary
from export import export
from model import Params, Shape, count, init, loss
from restore import restore
from tokenizers import Tokenizer

HERE = Path(__file__).parent
BUCKETS = (48, 64, 96, 128, 192, 256, 384, 640, 1024)  # tokens in a row; a conversation is padded
STEP_TOKENS = 3072
PEAK_MUON, PEAK_ADAM, WARMUP = 0.02, 3e-3, 60
READING = 0.05  # loss weight of what the model reads; what it says weighs 1
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Stage:
    """A part of the training, up to and with step `last`."""

    last: int
    mix: corpus.Mix
    rates: tuple[float, float]  # learning rate at its start and end, in parts of the peak


STAGES = (
    Stage(750, corpus.PLAIN, (1.0, 1.0)),
    Stage(1000, corpus.DICTATION, (1.0, 1.0)),
    Stage(1600, corpus.DICTATION, (1.0, 0.68)),
    Stage(2500, corpus.BALANCED, (0.68, 0.13)),
    Stage(4000, corpus.FINISH, (0.5, 0.01)),
    Stage(5200, corpus.TRUTH, (0.5, 0.01)),
    Stage(6800, corpus.REASON, (0.5, 0.01)),
)
WITHOUT_REASONING = 5200  # steps that are in the weights from which `--from` goes on


def examples(
    tokenizer: Tokenizer, rng: random.Random, stage: Stage
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Endless conversations as (tokens, loss weights)."""
    header = tokenizer.encode("<|im_start|>assistant\n").ids
    thinks = tokenizer.token_to_id(vocabulary.THOUGHT[0])
    while True:
        text = corpus.draw(rng, stage.mix)
        ids = tokenizer.encode(text).ids
        weights = np.full(len(ids), READING, np.float32)
        if ids[0] != vocabulary.TURN_START:
            weights[:] = 1.0
        speaking = False
        for i, token in enumerate(ids):
            weights[i] = 1.0 if speaking else weights[i]
            if token == thinks:  # the prompt begins to reason, never the model by itself
                weights[i] = 0.0
            if token == vocabulary.TURN_END:
                speaking = False
            elif ids[max(0, i - len(header) + 1) : i + 1] == header:
                speaking = True
        yield ids, weights


def batches(tokenizer: Tokenizer, seed: int, stage: Stage) -> Iterator[tuple[np.ndarray, ...]]:
    """Endless (tokens, positions, weights), each (rows, bucket).

    In a third of the rows the positions leap once, at a turn: so the model meets distances as far
    as its context reaches in rows that are much shorter.
    """
    rng = random.Random(seed)
    waiting = {size: [] for size in BUCKETS}
    for ids, weights in examples(tokenizer, rng, stage):
        size = next((size for size in BUCKETS if len(ids) <= size), None)
        if size is None:
            continue
        rows = waiting[size]
        rows.append((ids, weights))
        if len(rows) * size < STEP_TOKENS - size // 2:
            continue
        tokens = np.full((len(rows), size), vocabulary.END_OF_TEXT, np.int32)
        weight = np.zeros((len(rows), size), np.float32)
        positions = np.tile(np.arange(size, dtype=np.int32), (len(rows), 1))
        for row, (ids, weights) in enumerate(rows):
            tokens[row, : len(ids)] = ids
            weight[row, : len(ids)] = weights
            turns = [i for i, token in enumerate(ids) if token == vocabulary.TURN_START and i]
            if turns and rng.random() < 1 / 3:
                positions[row, rng.choice(turns) :] += rng.randrange(Shape.context - size)
        rows.clear()
        yield tokens, positions, weight


def schedule(
    tokenizer: Tokenizer, seed: int, first: int, cold: int
) -> Iterator[tuple[int, float, tuple[np.ndarray, ...]]]:
    """Step, learning rate in parts of the peak, and batch, from step `first` on. The optimizer knew
    nothing at step `cold`, and is warmed up from there.
    """
    begin = 1
    for stage in STAGES:
        start, end = stage.rates
        resumed = max(begin, first)
        for step, batch in zip(
            range(resumed, stage.last + 1), batches(tokenizer, seed + resumed, stage), strict=False
        ):
            done = (step - begin) / (stage.last - begin)
            warm = (step - cold + 1) / WARMUP
            yield step, min(warm, start + (end - start) * done), batch
        begin = stage.last + 1


def orthogonal(update: jax.Array) -> jax.Array:
    """Newton-Schulz: the nearest orthogonal matrix, roughly, to each matrix of the stack."""
    wide = update.shape[-1] > update.shape[-2]
    x = update if wide else jnp.swapaxes(update, -1, -2)
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-7)
    for _ in range(5):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else jnp.swapaxes(x, -1, -2)


@partial(jax.jit, static_argnames="shape", donate_argnames=("params", "state"))
def train_step(params: Params, state: dict, shape: Shape, batch: tuple, step, scale):
    """One step of Muon (matrices) and Adam (embedding, norms); `scale` is the schedule's 0..1."""
    value, grads = jax.value_and_grad(loss)(params, shape, *batch)
    new, momentum, second = {}, {}, {}
    for name, weight in params.items():
        grad = grads[name]
        if name in MATRICES:
            momentum[name] = 0.95 * state["momentum"][name] + grad
            second[name] = state["second"][name]
            direction = orthogonal(grad + 0.95 * momentum[name])
            gain = max(1.0, weight.shape[-1] / weight.shape[-2]) ** 0.5
            rate = PEAK_MUON * scale
            new[name] = weight * (1 - 0.02 * rate) - rate * gain * direction
        else:
            momentum[name] = 0.9 * state["momentum"][name] + 0.1 * grad
            second[name] = 0.98 * state["second"][name] + 0.02 * grad * grad
            mean = momentum[name] / (1 - 0.9**step)
            spread = jnp.sqrt(second[name] / (1 - 0.98**step)) + 1e-8
            new[name] = weight - PEAK_ADAM * scale * mean / spread
    return new, {"momentum": momentum, "second": second}, value


def nothing_known(params: Params) -> dict:
    """The optimizer's state before its first step."""
    return {
        "momentum": jax.tree.map(jnp.zeros_like, params),
        "second": {n: jnp.zeros(() if n in MATRICES else p.shape) for n, p in params.items()},
    }


def train(seed: int, work: Path, resume: bool, begun: Path | None) -> tuple[Params, Tokenizer]:
    """Train from nothing, from the checkpoint in `work`, or from the file `begun`."""
    shape, first, cold = Shape(), 1, 1
    if resume:  # the corpus may have been mended meanwhile: another tokenizer would not fit
        tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        params, state, first = load(work)
    elif begun:
        arrays, tokenizer = restore(begun, shape, seed)
        params = {name: jnp.asarray(array) for name, array in arrays.items()}
        first = cold = WITHOUT_REASONING + 1
    else:
        rng = random.Random(seed)
        tokenizer = vocabulary.train((corpus.draw(rng) for _ in range(30_000)), shape.vocab)
        params = init(shape, jax.random.key(seed))
    if not resume:
        state = nothing_known(params)
        tokenizer.save(str(work / "tokenizer.json"))
    print(f"{count(params):,} parameters", flush=True)
    seen, recent, began = 0, [], time.monotonic()
    for step, scale, batch in schedule(tokenizer, seed, first, cold):
        params, state, value = train_step(params, state, shape, batch, float(step), scale)
        recent.append(float(value))
        seen += batch[0].size
        if step % 100 == 0:
            rate = seen / (time.monotonic() - began)
            minutes = (time.monotonic() - began) / 60
            print(
                f"step {step} loss {np.mean(recent):.4f} {rate:.0f} tok/s {minutes:.1f} min",
                flush=True,
            )
            recent = []
        if step % 100 == 0:
            save(work, params, state, step + 1)
    return params, tokenizer


def save(work: Path, params: Params, state: dict, step: int) -> None:
    trees = {"params": params, **state}
    arrays = {f"{tree}.{name}": array for tree, d in trees.items() for name, array in d.items()}
    np.savez(work / "next.npz", step=step, **arrays)
    (work / "next.npz").replace(work / "checkpoint.npz")


def load(work: Path) -> tuple[Params, dict, int]:
    trees: dict[str, dict] = {"params": {}, "momentum": {}, "second": {}}
    with np.load(work / "checkpoint.npz") as file:
        for key in file.files:
            if key != "step":
                tree, name = key.split(".")
                trees[tree][name] = jnp.asarray(file[key])
        return trees.pop("params"), trees, int(file["step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=HERE / "work", help="checkpoints go here")
    parser.add_argument("--out", type=Path, default=HERE.parent / "demo.gguf")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--from", type=Path, dest="begun", help="a GGUF to train further")
    arguments = parser.parse_args()
    arguments.work.mkdir(exist_ok=True)
    params, tokenizer = train(arguments.seed, arguments.work, arguments.resume, arguments.begun)
    export(jax.tree.map(np.asarray, params), Shape(), tokenizer, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
