"""Speed and memory of a policy update: `python -m benchmarks.update [--json FILE]`.

Forward and backward of the training loss, the response tokens' log-probabilities weighted by
their advantages, of one batch of tokens in float32. Ours and Hugging Face's transformers, with
torch on the CPU, take turns with the same shapes and thread count, in each round a process of
its own: sharing one, the side that takes its memory after the other gave some back finds pages
that are ready. A time ends when the gradients are there; the first pass of a process, with
compilation, is not counted. Weights are random: they do not change the time.

- freshper: as `make_update` calls the model, which then scores responses only, half of the
  tokens here.
- transformers: as one writes it there, with the logits of all tokens.
- freshper-all, transformers-responses: each side doing what the other does, so that like can be
  held against like. transformers needs its head called by hand for that.

Beside them stand the rate at which this machine multiplies matrices of the sizes that the model
needs, one by one, and the share of that rate which our pass over all tokens reaches; products of
attention and those computed again are not counted as work done. The memory is the peak of a
process that makes AdamW updates and nothing else, by default in two microbatches.

The comparison needs torch: `pip install torch transformers`. Without it ours is measured alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console

from experiments.progress import Console
from freshper_jax.models import PRESETS, ModelConfig, make_model, preset
from freshper_jax.training import (
    OptimizerConfig,
    init_train_state,
    make_optimizer,
    make_update,
)

__all__ = ["judge", "main", "matrix_products", "measure_apart", "measure_speed", "tables"]

OURS, REFERENCE = "freshper", "transformers"
OURS_ALL, REFERENCE_RESPONSES = "freshper-all", "transformers-responses"
PRODUCTS, MEMORY = "products", "memory"
PASSES = 3  # timed in a process, after one that is not
GIB = 2**30
LOGIT_ROWS = 1024  # of a product with the vocabulary, at a time
AT_LEAST_TO_REFERENCE = 1.0
AT_LEAST_OF_MATMUL_RATE = 0.5
AT_MOST_GIB = 6.0

Call = Callable[[], None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """What an update reads; see `training.Batch`. Host arrays, or the device's."""

    tokens: Any  # [B, T]
    response_mask: Any  # [B, T]
    behaviour_log_probs: Any  # [B, T]
    advantages: Any  # [B, T]
    temperature: Any  # [B]


def make_batch(config: ModelConfig, rows: int, length: int) -> Batch:
    """Draws tokens [B, T], half of them responses, and advantages."""
    rng = np.random.default_rng(0)
    mask = rng.random((rows, length)) < 0.5
    mask[:, 0] = False
    return Batch(
        tokens=rng.integers(0, config.vocab_size, (rows, length), np.int32),
        response_mask=mask,
        behaviour_log_probs=np.full((rows, length), -np.log(config.vocab_size), np.float32),
        advantages=rng.standard_normal((rows, length), np.float32),
        temperature=np.ones(rows, np.float32),
    )


def our_pass(config: ModelConfig, batch: Batch, *, responses_only: bool) -> Call:
    """Makes our forward and backward pass, which compiles at its first call."""
    model = make_model(config)
    params = jax.jit(model.init)(jax.random.key(0))
    batch = jax.device_put(batch)

    @jax.jit
    @jax.value_and_grad
    def loss(params: Any, batch: Batch) -> jax.Array:
        mask = batch.response_mask if responses_only else None
        log_probs, _ = model.token_log_probs(params, batch.tokens, batch.temperature, mask)
        gain = jnp.where(batch.response_mask, batch.advantages * log_probs, 0.0)
        return -jnp.sum(gain) / jnp.sum(batch.response_mask, dtype=jnp.float32)

    def call() -> None:
        jax.block_until_ready(loss(params, batch))

    return call


def their_pass(config: ModelConfig, batch: Batch, threads: int, *, responses_only: bool) -> Call:
    """Makes the same pass in transformers, as one would write it there or by hand."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config.to_hf()), dtype=torch.float32
    )
    tokens = torch.from_numpy(np.asarray(batch.tokens, np.int64))
    mask = torch.from_numpy(batch.response_mask)
    advantages = torch.from_numpy(batch.advantages)

    def score(logits: Any, chosen: Any) -> Any:
        return torch.log_softmax(logits, dim=-1).gather(-1, chosen[..., None])[..., 0]

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        log_probs = score(logits, tokens[:, 1:])
        gain = torch.where(mask[:, 1:], advantages[:, 1:] * log_probs, 0.0)
        (-gain.sum() / mask.sum()).backward()

    def by_hand() -> None:
        model.zero_grad(set_to_none=True)
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        responses = mask[:, 1:]
        log_probs = score(model.lm_head(hidden[responses]), tokens[:, 1:][responses])
        gain = advantages[:, 1:][responses] * log_probs
        (-gain.sum() / mask.sum()).backward()

    return by_hand if responses_only else plain


def matrix_products(config: ModelConfig, tokens: int) -> dict[tuple[int, int, int], float]:
    """Lists the products that a pass over so many tokens needs.

    Returns:
      How often each product [M, K] x [K, N] is needed, by (M, K, N): of each kernel one
      forward, one for the gradient of its input and one for its own. Those with the
      vocabulary are in pieces of a thousand tokens.
    """
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layers = config.num_hidden_layers
    kernels: list[tuple[int, int, int, float]] = [
        (tokens, width, queries, layers),
        (tokens, width, keys, 2 * layers),
        (tokens, queries, width, layers),
        (tokens, width, inner, 2 * layers),
        (tokens, inner, width, layers),
    ]
    piece = min(tokens, LOGIT_ROWS)
    kernels.append((piece, width, config.vocab_size, tokens / piece))
    counts: dict[tuple[int, int, int], float] = {}
    for rows, first, second, count in kernels:
        for sizes in ((rows, first, second), (rows, second, first), (first, rows, second)):
            counts[sizes] = counts.get(sizes, 0) + count
    return counts


def time_passes(call: Call) -> list[float]:
    """Times passes, in seconds, after one that compiles."""
    return [_seconds(call) for _ in range(1 + PASSES)][1:]


def time_products(config: ModelConfig, tokens: int) -> float:
    """Times each product of `matrix_products`, and adds up how long all of them would take."""
    total = 0.0
    for sizes, count in matrix_products(config, tokens).items():
        total += count * min(time_passes(_product(*sizes)))
    return total


def measure_speed(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    rounds: int,
    compare: bool,
    measure: Callable[[str], Any],
    console: Console,
) -> dict[str, Any]:
    """Times the passes in turns, and the products that they are made of.

    Args:
      config: the model.
      rows, length: of the batch.
      rounds: processes of each side.
      compare: whether transformers takes part.
      measure: see `measure_apart`.
      console: where progress shows.

    Returns:
      `cells`, one a side, `ratio`, ours against theirs in speed by the minimum, `ratios` of
      like with like, and `matmul`.
    """
    sides = [OURS, REFERENCE, OURS_ALL, REFERENCE_RESPONSES] if compare else [OURS, OURS_ALL]
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    alone = float("inf")
    with console.counting("rounds", rounds) as show:
        for turn in range(rounds):
            for side in sides[:: -1 if turn % 2 else 1]:
                seconds[side] += measure(side)
            alone = min(alone, measure(PRODUCTS))
            show(turn + 1)
    products = matrix_products(config, rows * length)
    operations = sum(2 * np.prod(sizes, dtype=float) * n for sizes, n in products.items())
    least = {side: min(times) for side, times in seconds.items()}
    cells = [
        {
            "implementation": side,
            "minimum_s": least[side],
            "median_s": statistics.median(times),
            "tokens_per_s": rows * length / least[side],
        }
        for side, times in seconds.items()
    ]
    return {
        "threads": cpus(),
        "cells": cells,
        "ratio": least[REFERENCE] / least[OURS] if compare else None,
        "ratios": {
            "all tokens": least[REFERENCE] / least[OURS_ALL],
            "responses only": least[REFERENCE_RESPONSES] / least[OURS],
        }
        if compare
        else {},
        "matmul": {"gflops": operations / alone / 1e9, "share": alone / least[OURS_ALL]},
    }


def _product(rows: int, inner: int, columns: int) -> Call:
    keys = jax.random.split(jax.random.key(0))
    left = jax.random.normal(keys[0], (rows, inner), jnp.float32)
    right = jax.random.normal(keys[1], (inner, columns), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(left, right).block_until_ready()


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cpus() -> int:
    """Counts the CPUs that this process may use, which is the thread count of both sides."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def update_memory(
    config: ModelConfig, *, rows: int, length: int, microbatches: int
) -> dict[str, float]:
    """Makes two AdamW updates, and tells the peak memory of this process in GiB.

    Args:
      config: the model.
      rows, length: of the batch.
      microbatches: parts that the batch is worked off in.

    Returns:
      `resident_gib`, the largest resident set, and `compiled_gib`, what the compiler plans for
      the update: its arguments, results and temporaries.
    """
    model, optimizer = make_model(config), make_optimizer(OptimizerConfig())
    update = jax.jit(
        make_update(model.token_log_probs, optimizer, microbatches=microbatches),
        donate_argnames=("state",),
    )
    batch = jax.device_put(make_batch(config, rows, length))
    weights = jnp.ones(rows, jnp.float32)
    make_state = jax.jit(lambda key: init_train_state(model.init(key), optimizer))
    state = make_state(jax.random.key(0))
    plan = update.lower(state, batch, weights).compile()
    sizes = plan.memory_analysis()
    assert sizes is not None, "the CPU's compiler plans memory"
    planned = (
        sizes.argument_size_in_bytes
        + sizes.output_size_in_bytes
        - sizes.alias_size_in_bytes
        + sizes.temp_size_in_bytes
    )
    for _ in range(2):
        state, *_ = plan(state, batch, weights)
    jax.block_until_ready(state)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 1 if sys.platform == "darwin" else 1024
    return {"resident_gib": peak * unit / GIB, "compiled_gib": planned / GIB}


def measure_apart(what: str, flags: list[str]) -> Any:
    """Runs `measure_here` in a process of its own, under the given flags of this module."""
    command = [sys.executable, "-m", "benchmarks.update", "--apart", what, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout)


def measure_here(what: str, config: ModelConfig, *, rows: int, length: int, parts: int) -> Any:
    """Measures one of the sides' passes, the products, or the memory of an update."""
    if what == MEMORY:
        return update_memory(config, rows=rows, length=length, microbatches=parts)
    if what == PRODUCTS:
        return time_products(config, rows * length)
    batch = make_batch(config, rows, length)
    responses_only = what in (OURS, REFERENCE_RESPONSES)
    if what in (OURS, OURS_ALL):
        return time_passes(our_pass(config, batch, responses_only=responses_only))
    return time_passes(their_pass(config, batch, cpus(), responses_only=responses_only))


def judge(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Holds a report against the goals; `passed` is None where a side was not measured."""
    memory, ratio = report["memory"]["resident_gib"], report["ratio"]
    share = report["matmul"]["share"]
    goals = [
        ("speed against transformers", "at least", AT_LEAST_TO_REFERENCE, ratio),
        ("share of the matmul rate", "at least", AT_LEAST_OF_MATMUL_RATE, share),
        ("memory of an update, GiB", "at most", AT_MOST_GIB, memory),
    ]
    return [
        {
            "goal": name,
            "bound": f"{direction} {bound}",
            "measured": value,
            "passed": None
            if value is None
            else (value >= bound if direction == "at least" else value <= bound),
        }
        for name, direction, bound, value in goals
    ]


def tables(report: dict[str, Any]) -> str:
    """Writes the report as Markdown."""
    settings = report["settings"]
    lines = [
        f"Forward and backward of {settings['rows']} x {settings['length']} tokens, "
        f"{settings['preset']}, float32, {report['threads']} threads, remat {settings['remat']}:",
        "",
        "| | minimum | median | tokens/s |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {cell['implementation']} | {cell['minimum_s']:.2f} s | {cell['median_s']:.2f} s "
        f"| {cell['tokens_per_s']:.0f} |"
        for cell in report["cells"]
    ]
    memory, matmul = report["memory"], report["matmul"]
    if report["ratios"]:
        alike = (f"{what} {ratio:.2f}" for what, ratio in report["ratios"].items())
        lines += ["", f"Speed against {REFERENCE}, like with like: {', '.join(alike)}."]
    lines += [
        "",
        f"The products alone: {matmul['gflops']:.1f} GFLOP/s, of which {OURS_ALL} reaches "
        f"{matmul['share']:.2f}.",
        f"Memory of an update in {settings['microbatches']} microbatches: "
        f"{memory['resident_gib']:.2f} GiB resident at the peak, "
        f"{memory['compiled_gib']:.2f} GiB planned by the compiler.",
        "",
        "| goal | bound | measured | |",
        "| --- | --- | --- | --- |",
    ]
    marks = {True: "passed", False: "MISSED", None: "not measured"}
    lines += [
        f"| {entry['goal']} | {entry['bound']} "
        f"| {'' if entry['measured'] is None else format(entry['measured'], '.2f')} "
        f"| {marks[entry['passed']]} |"
        for entry in report["targets"]
    ]
    return "\n".join(lines)


def missing() -> str | None:
    """Says what the comparison lacks, or None."""
    absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} not installed; pip install torch transformers"


def main() -> None:
    """Measure, print the tables, and write the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="Speed and memory of a policy update.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--preset", choices=list(PRESETS), default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens a row")
    parser.add_argument("--rounds", type=int, default=2, help=f"of {PASSES} passes a side")
    parser.add_argument(
        "--microbatches", type=int, default=2, help="of the update whose memory is measured"
    )
    parser.add_argument("--remat", help="what the backward pass recomputes; the preset's")
    parser.add_argument("--ours-only", action="store_true", help="leave transformers out")
    parser.add_argument(
        "--apart",
        choices=[OURS, REFERENCE, OURS_ALL, REFERENCE_RESPONSES, PRODUCTS, MEMORY],
        help=argparse.SUPPRESS,
    )
    options = parser.parse_args()
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    for name, least in (("rows", 1), ("length", 2), ("rounds", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name}: at least {least}, got {getattr(options, name)}")
    if options.microbatches < 1 or options.rows % options.microbatches:
        parser.error(
            f"--microbatches: must divide the {options.rows} rows, got {options.microbatches}"
        )
    changes = {} if options.remat is None else {"remat": options.remat}
    try:
        config = preset(options.preset, **changes)
    except ValueError as error:
        parser.error(str(error))
    if options.apart is not None:
        figures = measure_here(
            options.apart,
            config,
            rows=options.rows,
            length=options.length,
            parts=options.microbatches,
        )
        print(json.dumps(figures))
        return

    absent = "it was to be left out" if options.ours_only else missing()
    if absent is not None:
        print(f"transformers is not compared: {absent}")
    flags = ["--preset", options.preset, "--remat", config.remat]
    flags += ["--rows", str(options.rows), "--length", str(options.length)]
    flags += ["--microbatches", str(options.microbatches)]

    def measure(what: str) -> Any:
        return measure_apart(what, flags)

    # This process stays small: the peak of a child begins at that of its parent.
    memory = measure(MEMORY)
    speed = measure_speed(
        config,
        rows=options.rows,
        length=options.length,
        rounds=options.rounds,
        compare=absent is None,
        measure=measure,
        console=Console(rich.console.Console(stderr=True)),
    )
    report: dict[str, Any] = {
        "versions": _versions(["torch", "transformers"] if absent is None else []),
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.system(),
            "processor": platform.machine(),
            "backend": jax.default_backend(),
        },
        "settings": {
            "preset": options.preset,
            "rows": options.rows,
            "length": options.length,
            "rounds": options.rounds,
            "microbatches": options.microbatches,
            "remat": config.remat,
        },
        "memory": memory,
        **speed,
    }
    report["targets"] = judge(report)
    print(tables(report))
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")


def _versions(more: list[str]) -> dict[str, str]:
    """Looks up what the figures depend on."""
    names = ["jax", "jaxlib", "flax", "numpy", *more]
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version()} | versions


if __name__ == "__main__":
    main()
