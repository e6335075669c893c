import builtins
import functools

import chex
import gguf
import jax
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from freshper_jax.models import ModelConfig, RopeScaling, make_mesh, param_shardings
from freshper_jax.weights import load_pretrained
from tests.golden import cases
from tests.weights.common import counting, load_case, stored, write_tokenizer

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Rows of every matrix are whole blocks of 32.
WIDE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def gguf_name(name):
    plain = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in plain:
        return plain[name]
    _, _, layer, *kind, suffix = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(kind)]}.{suffix}"


def permuted(rows, heads):
    """llama.cpp's order of Llama's query and key rows."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, fields, *, kind=Kind.F32, extra=None, drop=(), metadata=None):
    """Writes a case as llama.cpp would; matrices of the given kind, vectors in F32."""
    writer = gguf.GGUFWriter(path, fields["model_type"])
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_key_length(fields["head_dim"])
    writer.add_rope_dimension_count(fields["head_dim"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_eos_token_id(2)
    for key, value in (metadata or {}).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_string
        add(f"{fields['model_type']}.{key}" if "general" not in key else key, value)
    heads = {"q_proj": fields["num_attention_heads"], "k_proj": fields["num_key_value_heads"]}
    for name, value in (cases.tensors(fields) | (extra or {})).items():
        if name in drop:
            continue
        part = name.split(".")[-2] if "." in name else ""
        if fields["model_type"] == "llama" and part in heads and value.ndim == 2:
            value = permuted(value, heads[part])
        known = name in cases.tensor_shapes(fields)
        raw = value if value.ndim == 1 or kind is None else gguf.quantize(value, kind)
        raw_kind = Kind.F32 if value.ndim == 1 else kind
        if not known:
            writer.add_tensor(name, value)
        elif raw_kind in (Kind.F32, Kind.F16):
            writer.add_tensor(gguf_name(name), raw)
        else:
            writer.add_tensor(gguf_name(name), raw, raw_dtype=raw_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def load(tmp_path):
    """Loads a GGUF file with a word-level tokenizer beside it."""
    write_tokenizer(tmp_path / "tokenizer")
    return functools.partial(load_pretrained, tokenizer=tmp_path / "tokenizer")


@pytest.mark.parametrize(
    "name",
    ["llama_group2_untied", "llama_group1_tied", "qwen2_group7_tied", "qwen3_group1_untied"],
)
def test_a_gguf_file_gives_the_model_of_the_folder(name, tmp_path, load):
    loaded = load(write_gguf(tmp_path / "model.gguf", cases.CASES[name]))
    config, params = load_case(tmp_path / "folder", name)
    assert loaded.config == config
    assert loaded.generation_config == {"eos_token_id": 2}
    assert loaded.stop_ids == (2, 0)
    chex.assert_trees_all_equal(loaded.params, params)


def test_half_precision_is_read_exactly(tmp_path, load):
    name = "llama_group2_untied"
    for kind in (Kind.F16, Kind.BF16):
        loaded = load(write_gguf(tmp_path / f"{kind.name}.gguf", cases.CASES[name], kind=kind))
        dtype = np.float16 if kind is Kind.F16 else jax.numpy.bfloat16
        params = jax.tree.map(np.asarray, loaded.params)
        for tensor, value in cases.tensors(cases.CASES[name]).items():
            want = value if value.ndim == 1 else value.astype(dtype).astype(np.float32)
            np.testing.assert_array_equal(stored(loaded.config, params, tensor), want)


def blocks(raw, size):
    """Splits quantised rows into blocks of so many bytes, each of 32 numbers."""
    return np.ascontiguousarray(raw).reshape(-1, size)


def half(raw):
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def nibbles(raw):
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


# From ggml's description of the formats: a scale a block, then signed bytes; or nibbles, the
# low ones first, shifted by 8 or by a minimum of the block's own.
DECODERS = {
    Kind.Q8_0: (34, lambda b: half(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)),
    Kind.Q4_0: (18, lambda b: half(b[:, :2]) * (nibbles(b[:, 2:]) - 8)),
    Kind.Q4_1: (20, lambda b: half(b[:, :2]) * nibbles(b[:, 4:]) + half(b[:, 2:4])),
}


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.name)
def test_quantised_tensors_are_what_their_bytes_say(kind, tmp_path, load):
    fields = cases.CASES["llama_group2_untied"] | WIDE
    loaded = load(write_gguf(tmp_path / "model.gguf", fields, kind=kind))
    params = jax.tree.map(np.asarray, loaded.params)
    size, decode = DECODERS[kind]
    for tensor, value in cases.tensors(fields).items():
        want = value
        if value.ndim == 2:
            want = decode(blocks(gguf.quantize(value, kind), size)).reshape(value.shape)
            assert not np.array_equal(want, value)
        got = stored(loaded.config, params, tensor)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7, err_msg=tensor)


def test_a_mesh_reads_only_the_rows_of_its_shards(tmp_path):
    from freshper_jax.weights import load_params
    from freshper_jax.weights.gguf_file import open_gguf

    fields = cases.CASES["llama_group2_untied"] | WIDE
    path = write_gguf(tmp_path / "model.gguf", fields, kind=Kind.Q8_0)
    config, whole, _ = open_gguf(path, {})
    source, read = counting(whole)
    shardings = functools.partial(param_shardings, make_mesh(fsdp=2, tp=2))
    params = load_params(config, source, shardings=shardings)
    chex.assert_trees_all_equal(params, load_params(config, whole))
    assert sum(read) == sum(leaf.size for leaf in jax.tree.leaves(params))


def llama3_divisors(head_dim, theta, factor):
    """What llama.cpp writes in rope_freqs.weight, one frequency at a time."""
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (index / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama_3_s_scaling_is_read_from_its_divisors(tmp_path, load):
    fields = cases.CASES["llama_group2_untied"] | {"head_dim": 32, "rope_theta": 5e5}
    divisors = llama3_divisors(32, 5e5, 32.0)
    assert 1.0 in divisors
    assert 32.0 in divisors
    assert len(np.unique(divisors)) > 2
    extra = {"rope_freqs.weight": divisors}
    loaded = load(write_gguf(tmp_path / "model.gguf", fields, extra=extra))
    assert loaded.config.rope_scaling == RopeScaling(
        rope_type="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    extra = {"rope_freqs.weight": divisors + 1}
    with pytest.raises(ValueError, match=r"rope_freqs\.weight is not Llama 3's scaling"):
        load(write_gguf(tmp_path / "other.gguf", fields, extra=extra))


def test_linear_scaling_is_read_and_another_refused(tmp_path, load):
    fields = cases.CASES["llama_group2_untied"]
    metadata = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    loaded = load(write_gguf(tmp_path / "a.gguf", fields, metadata=metadata))
    assert loaded.config == ModelConfig.from_hf(
        fields | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    )
    metadata["rope.scaling.type"] = "yarn"
    with pytest.raises(ValueError, match="rope_scaling of type 'yarn' is not supported"):
        load(write_gguf(tmp_path / "b.gguf", fields, metadata=metadata))


def test_tensors_that_do_not_fit_are_listed_under_hugging_face_s_names(tmp_path, load):
    fields = cases.CASES["qwen2_group1_untied"]
    path = write_gguf(
        tmp_path / "model.gguf",
        fields,
        extra={"blk.0.ffn_gate_exps.weight": np.zeros((2, 3), np.float32)},
        drop=("model.layers.1.self_attn.k_proj.bias",),
    )
    with pytest.raises(ValueError, match="do not fit its config") as caught:
        load(path)
    assert "1 missing: model.layers.1.self_attn.k_proj.bias (12,)" in str(caught.value)
    assert "1 unexpected: blk.0.ffn_gate_exps.weight (2, 3)" in str(caught.value)


def test_refuses_what_it_cannot_read(tmp_path, load):
    fields = cases.CASES["llama_group2_untied"]
    path = write_gguf(tmp_path / "a.gguf", fields, extra={"extra": np.zeros((2, 3), np.int32)})
    with pytest.raises(ValueError, match=r"types that cannot be read: I32 of extra. Use a file"):
        load(path)
    path = write_gguf(tmp_path / "b.gguf", fields, metadata={"general.architecture": "mamba"})
    with pytest.raises(ValueError, match=r"general\.architecture must be one of .*, got 'mamba'"):
        load(path)
    (tmp_path / "c.gguf").write_bytes(b"not a GGUF file at all, but long enough")
    with pytest.raises(ValueError, match=r"c\.gguf: not a whole GGUF file"):
        load(tmp_path / "c.gguf")
    whole = write_gguf(tmp_path / "d.gguf", fields).read_bytes()
    (tmp_path / "e.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"e\.gguf: not a whole GGUF file"):
        load(tmp_path / "e.gguf")


def test_without_a_tokenizer_that_can_be_read_it_asks_for_one(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", cases.CASES["llama_group2_untied"])
    with pytest.raises(ValueError, match=r"\(SentencePiece\), got None; give the tokenizer's own"):
        load_pretrained(path)


def test_without_the_gguf_package_it_says_how_to_get_it(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "model.gguf", cases.CASES["llama_group2_untied"])
    plain = builtins.__import__

    def without(name, *rest, **more):
        if name == "gguf":
            raise ImportError(name)
        return plain(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "freshper-jax\[gguf\]"'):
        load_pretrained(path)
