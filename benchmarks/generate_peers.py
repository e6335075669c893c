"""The decoders that `benchmarks.generate` compares, each behind the same few calls."""

from __future__ import annotations

import dataclasses
import importlib
import os
import time
from typing import Any, Protocol

import jax
import numpy as np

from freshper_jax.generate import SamplingParams, init_cache, make_generator
from freshper_jax.models import ModelConfig, Params, make_model
from freshper_jax.rollout import ModelPolicy

__all__ = ["Freshper", "Shape", "Side", "Transformers", "cores", "missing", "to_torch"]

_NO_STOP = -1


@dataclasses.dataclass(frozen=True)
class Shape:
    """How much is decoded.

    | field       | meaning                                                       |
    |-------------|---------------------------------------------------------------|
    | prompt      | tokens in the cache before a decode                           |
    | new         | tokens drawn by a decode                                      |
    | rows        | rows of an episode                                            |
    | turns       | turns of an episode                                           |
    | observation | tokens read at each turn                                      |
    | reply       | tokens drawn at each turn                                     |
    """

    prompt: int = 32
    new: int = 128
    rows: int = 16
    turns: int = 10
    observation: int = 60
    reply: int = 20

    @property
    def episode(self) -> int:
        """The tokens of a whole episode."""
        return self.turns * (self.observation + self.reply)


class Side(Protocol):
    """One implementation, with its weights; each call returns the seconds that it took."""

    def decode(self, prompt: np.ndarray) -> float:
        """Draw tokens after prompts [B, T], which are in the cache when the clock starts."""
        ...

    def episode(self, observations: np.ndarray) -> float:
        """Play an episode of observations [turns, B, T], the first one its prompt."""
        ...

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """Return the logits [B, V] after prompts [B, T]."""
        ...


def cores() -> int:
    """Count the cores that this process may use: the threads of both sides."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Freshper:
    """This project: the cache is kept from turn to turn, and grows as the episode does."""

    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        self._shape = shape
        self._model = make_model(config)
        self._generator = make_generator(self._model)
        self.params = jax.jit(self._model.init)(jax.random.key(0))
        self._unstacked = self._generator.unstack(self.params)

    def _prefill(self, prompt: np.ndarray) -> Any:
        rows, length = prompt.shape
        cache = init_cache(self._model.config, rows, length + self._shape.new)
        counts = np.full(rows, length, np.int32)
        return self._generator.extend(self._unstacked, cache, prompt, counts)

    def decode(self, prompt: np.ndarray) -> float:
        """Time `decode` alone."""
        rows, new = len(prompt), self._shape.new
        cache, logits = jax.block_until_ready(self._prefill(prompt))
        start = time.perf_counter()
        drawn = self._generator.decode(
            self._unstacked, cache, logits, jax.random.key(1), np.arange(rows),
            SamplingParams(), [_NO_STOP], np.full(rows, new), max_new=new,
        )  # fmt: skip
        jax.block_until_ready(drawn)
        return time.perf_counter() - start

    def episode(self, observations: np.ndarray) -> float:
        """Time a policy's turns, laying out its parameters included."""
        turns, rows, width = observations.shape
        size = self._shape.episode
        policy = ModelPolicy(
            model=self._model,
            generator=self._generator,
            params=self.params,
            key=jax.random.key(1),
            sampling=SamplingParams(),
            stop_ids=(_NO_STOP,),
            slots=size,
            max_new_tokens=self._shape.reply,
            chunks=(width,),
            capacities=tuple(sorted({-(-size // 4), -(-size // 2)} - {size})),
        )
        start = time.perf_counter()
        memory = policy.init(rows)
        budgets = np.full(rows, self._shape.reply, np.int32)
        for turn in range(turns):
            starts = np.full(rows, turn == 0)
            pending = observations[turn].tolist()
            memory, replies = policy.respond(memory, pending, starts, np.arange(rows), budgets)
        jax.block_until_ready(memory.logits)
        seconds = time.perf_counter() - start
        assert int(replies.counts.sum()) == rows * self._shape.reply
        return seconds

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """Return the logits after the prompts."""
        return np.asarray(self._prefill(prompt)[1])


class Transformers:
    """Hugging Face transformers with torch, on the same weights.

    An episode goes as `generate` has it: with the whole conversation at each turn, or, where
    `keeps_cache`, with the cache of the turn before handed back to it.
    """

    def __init__(
        self, config: ModelConfig, params: Params, shape: Shape, *, keeps_cache: bool = False
    ) -> None:
        self._shape, self._keeps_cache = shape, keeps_cache
        self._torch = importlib.import_module("torch")
        self._library = importlib.import_module("transformers")
        self._torch.set_num_threads(cores())
        fields = {k: v for k, v in config.to_hf().items() if k not in ("architectures",)}
        fields["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rope_theta}
        kind = self._library.Qwen2Config if config.attention_bias else self._library.LlamaConfig
        self._module = self._library.AutoModelForCausalLM.from_config(kind(**fields)).eval()
        state = {name: self._torch.tensor(value) for name, value in to_torch(params).items()}
        unknown = self._module.load_state_dict(state, strict=False)
        if unknown.unexpected_keys or set(unknown.missing_keys) - {"lm_head.weight"}:
            raise ValueError(f"the weights do not fit transformers' model: {unknown}")

    def _generate(self, tokens: Any, new: int, cache: Any = None) -> Any:
        with self._torch.inference_mode():
            return self._module.generate(
                tokens,
                attention_mask=self._torch.ones_like(tokens),
                past_key_values=cache,
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=None,
                pad_token_id=0,
            )

    def decode(self, prompt: np.ndarray) -> float:
        """Time `generate` after a prompt of which only the last token is to be read."""
        tokens = self._torch.tensor(prompt, dtype=self._torch.long)
        cache = self._library.DynamicCache(config=self._module.config)
        with self._torch.inference_mode():
            self._module(tokens[:, :-1], past_key_values=cache, logits_to_keep=1)
        start = time.perf_counter()
        drawn = self._generate(tokens, self._shape.new, cache)
        seconds = time.perf_counter() - start
        assert drawn.shape[1] == prompt.shape[1] + self._shape.new
        return seconds

    def episode(self, observations: np.ndarray) -> float:
        """Time the turns."""
        pieces = self._torch.tensor(observations, dtype=self._torch.long)
        cache = self._library.DynamicCache(config=self._module.config)
        tokens = pieces[0, :, :0]
        start = time.perf_counter()
        for piece in pieces:
            tokens = self._torch.cat([tokens, piece], dim=1)
            tokens = self._generate(
                tokens, self._shape.reply, cache if self._keeps_cache else None
            ).clone()
        seconds = time.perf_counter() - start
        assert tokens.shape[1] == self._shape.episode
        return seconds

    def logits(self, prompt: np.ndarray) -> np.ndarray:
        """Return the logits after the prompts."""
        tokens = self._torch.tensor(prompt, dtype=self._torch.long)
        with self._torch.inference_mode():
            return self._module(tokens, logits_to_keep=1).logits[:, -1].numpy()


def to_torch(params: Params) -> dict[str, np.ndarray]:
    """Name and lay out parameters as the state dict of transformers' Qwen2 or Llama model."""
    layers = jax.tree.map(np.asarray, params["layers"])
    count = len(layers["attention"]["output"])
    state = {
        "model.embed_tokens.weight": np.asarray(params["embedding"]),
        "model.norm.weight": np.asarray(params["final_norm"]["scale"]),
    }
    if "unembedding" in params:
        state["lm_head.weight"] = np.asarray(params["unembedding"]).T
    for index in range(count):
        layer = jax.tree.map(lambda leaf, index=index: leaf[index], layers)
        prefix = f"model.layers.{index}"
        state[f"{prefix}.input_layernorm.weight"] = layer["attention_norm"]["scale"]
        state[f"{prefix}.post_attention_layernorm.weight"] = layer["feed_forward_norm"]["scale"]
        for ours, theirs in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")):
            head = layer["attention"][ours]
            kernel = head["kernel"]
            state[f"{prefix}.self_attn.{theirs}.weight"] = kernel.reshape(len(kernel), -1).T
            if head.get("bias") is not None:
                state[f"{prefix}.self_attn.{theirs}.bias"] = head["bias"].reshape(-1)
        output = layer["attention"]["output"]
        state[f"{prefix}.self_attn.o_proj.weight"] = output.reshape(-1, output.shape[-1]).T
        for name in ("gate", "up", "down"):
            state[f"{prefix}.mlp.{name}_proj.weight"] = layer["feed_forward"][name].T
    return state


def missing() -> str | None:
    """Say why transformers cannot run here, and what to do about it; None where it can."""
    for module in ("torch", "transformers"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed; pip install torch transformers"
        except (ImportError, OSError) as error:
            # The message of a compiled module is about files of this machine.
            return f"{module} does not load ({type(error).__name__}); python -c 'import {module}'"
    return None
