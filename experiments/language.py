"""The model of a run and how it reads and writes: made from scratch, or pretrained."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from experiments.options import Options, OptionsError
from experiments.task import Task
from freshper_jax.models import LanguageModel, Params, make_model, param_shardings, preset
from freshper_jax.rollout import ChatRenderer, make_chat_renderer, make_word_tokenizer
from freshper_jax.weights import Pretrained, load_pretrained, preset_source

__all__ = ["Language", "make_language"]


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """A model with the chat format that it speaks.

    model: its functions.
    renderer: the chat format, with the tokenizer.
    source: where its weights come from, None for a model made from scratch.
    start: `(key, mesh) -> params`, the weights of the source, or new ones drawn with the key.
    """

    model: LanguageModel
    renderer: ChatRenderer
    source: str | None
    start: Callable[[jax.Array, Mesh | None], Params]


def make_language(options: Options, task: Task) -> Language:
    """Make the model of a preset; of pretrained ones the weights are not read yet.

    Raises:
      OptionsError: the weights cannot be read, or the tokenizer has no chat template.
    """
    if options.preset == "tiny":
        tokenizer = make_word_tokenizer(task.words)
        model = make_model(preset(options.preset, vocab_size=len(tokenizer)))
        renderer = make_chat_renderer(tokenizer)
        return Language(model, renderer, None, lambda key, _: jax.jit(model.init)(key))
    source = str(options.model.weights or preset_source(options.preset))

    def load(**arguments: Any) -> Pretrained:
        return load_pretrained(
            source,
            compute_dtype=options.model.compute_dtype,
            remat=options.model.remat,
            **arguments,
        )

    try:
        described = load(read_params=False)
        renderer = make_chat_renderer(described.tokenizer, extra_stop_ids=described.stop_ids)
    except (ImportError, OSError, ValueError) as error:
        raise OptionsError(f"--model.weights: {error}") from error

    def start(_: jax.Array, mesh: Mesh | None) -> Params:
        shardings = None if mesh is None else functools.partial(param_shardings, mesh)
        return load(shardings=shardings).params

    return Language(make_model(described.config), renderer, source, start)
