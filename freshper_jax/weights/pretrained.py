"""Whole models in and out: a folder, a GGUF file or a hub repository."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from freshper_jax.models import ModelConfig, Params
from freshper_jax.weights.gguf_file import open_gguf
from freshper_jax.weights.gguf_tokenizer import make_gguf_tokenizer
from freshper_jax.weights.tensors import MakeShardings, load_params, open_safetensors

_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.gguf)")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A model with what belongs to it.

    config: of the decoder; `make_model(config)` gives its functions.
    params: the parameters, as the model's `init` shapes them.
    tokenizer: a Hugging Face tokenizer, its chat template inside where there is one.
    generation_config: the fields of generation_config.json, {} where there is none.
    stop_ids: token ids that end a reply, by the generation config and the tokenizer.
    """

    config: ModelConfig
    params: Params
    tokenizer: PreTrainedTokenizerBase
    generation_config: Mapping[str, Any]
    stop_ids: tuple[int, ...]


def load_pretrained(
    source: str | Path,
    *,
    compute_dtype: str = "float32",
    param_dtype: str = "float32",
    shardings: MakeShardings | None = None,
    tokenizer: str | Path | None = None,
    revision: str | None = None,
    read_params: bool = True,
    **overrides: Any,
) -> Pretrained:
    """Loads a Qwen2, Qwen3 or Llama model with its tokenizer.

    Args:
      source: a folder as transformers saves it, a .gguf file, or a hub name "owner/model".
      compute_dtype, param_dtype: "float32" or "bfloat16", see ModelConfig.
      shardings: (shapes of the params) -> shardings, such as
        `functools.partial(param_shardings, mesh)`; by default all is on the default device.
      tokenizer: a folder or hub name to take the tokenizer from, instead of the source.
      revision: branch, tag or commit of a hub repository.
      read_params: whether to read the tensors; without them `params` is empty, which spares the
        time and the memory where they come from elsewhere, such as a checkpoint.
      overrides: other fields of ModelConfig, such as remat.

    Raises FileNotFoundError on a source that is not there, OSError where a hub repository
    cannot be fetched, ImportError where a GGUF file needs the gguf package, ValueError where
    the model is not one that the decoder runs or its tensors do not fit it.
    """
    overrides |= {"compute_dtype": compute_dtype, "param_dtype": param_dtype}
    path = fetch(source, revision=revision)
    if path.is_file():
        config, tensors, metadata = open_gguf(path, overrides)
        made = _gguf_tokenizer(metadata, path) if tokenizer is None else _tokenizer(tokenizer)
        generation = _gguf_generation(metadata)
    else:
        fields = _read_json(path / "config.json")
        try:
            config = ModelConfig.from_hf(fields, **overrides)
        except ValueError as error:
            raise ValueError(f"{path / 'config.json'}: {error}") from error
        tensors = open_safetensors(path)
        made = _tokenizer(path if tokenizer is None else tokenizer)
        named = {name: fields[name] for name in _TOKEN_IDS if fields.get(name) is not None}
        saved = path / "generation_config.json"
        generation = named | (_read_json(saved) if saved.exists() else {})
    params = load_params(config, tensors, shardings=shardings) if read_params else {}
    return Pretrained(config, params, made, generation, _stop_ids(generation, made))


def fetch(source: str | Path, *, revision: str | None = None) -> Path:
    """Returns the folder or .gguf file of a source, downloading what is a hub name.

    Raises FileNotFoundError where it is neither, OSError where the hub cannot be reached or
    has no such repository.
    """
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists() or not _HUB_NAME.fullmatch(str(source)):
        raise FileNotFoundError(
            f"source must be a folder, a .gguf file or a hub name like 'owner/model', "
            f"got {str(source)!r}"
        )
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            str(source), revision=revision, allow_patterns=_HUB_FILES
        )
    except Exception as error:
        raise OSError(
            f"{source}: not a folder here, and the hub did not give it ({error}). With no "
            "network, give the path of a folder or of a .gguf file that was downloaded before; "
            "a gated model needs `hf auth login` first"
        ) from error
    return Path(folder)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there; a model's folder must hold it")
    return json.loads(path.read_text())


def _tokenizer(source: str | Path) -> PreTrainedTokenizerBase:
    path = fetch(source)
    # Without any of them transformers makes up an empty tokenizer.
    if not any((path / name).exists() for name in _TOKENIZER_FILES):
        raise FileNotFoundError(
            f"{path}: it has no tokenizer, none of {', '.join(_TOKENIZER_FILES)}; give the "
            "folder or hub name of one as tokenizer"
        )
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: its tokenizer cannot be read: {error}") from error


def _gguf_tokenizer(metadata: Mapping[str, Any], path: Path) -> PreTrainedTokenizerBase:
    try:
        return make_gguf_tokenizer(metadata)
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}; give the tokenizer's own folder or hub name as tokenizer"
        ) from error


def _gguf_generation(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the token ids of a GGUF file as a generation config names them."""

    def token_id(name: str) -> int | None:
        value = metadata.get(f"tokenizer.ggml.{name}_token_id")
        return None if value is None else int(value)

    ends = [token_id(name) for name in ("eos", "eot", "eom")]
    stops = list(dict.fromkeys(end for end in ends if end is not None))
    fields = {
        "bos_token_id": token_id("bos"),
        "eos_token_id": stops[0] if len(stops) == 1 else stops or None,
        "pad_token_id": token_id("padding"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _stop_ids(generation: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    ends = generation.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    stops = dict.fromkeys([*listed, tokenizer.eos_token_id])
    return tuple(int(stop) for stop in stops if stop is not None)
