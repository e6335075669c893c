import functools
import json
import tracemalloc

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from freshper_jax.models import ModelConfig, make_mesh, make_model, param_shardings
from freshper_jax.weights import TensorSource, load_params, open_safetensors
from tests.golden import cases
from tests.weights.common import counting, load_case, stored, write_folder

NAME = "llama_group2_untied"
FIELDS = cases.CASES[NAME]
CONFIG = ModelConfig.from_hf(FIELDS)


@pytest.mark.parametrize("name", cases.CASES)
def test_every_tensor_is_where_the_decoder_wants_it(name, tmp_path):
    config, params = load_case(tmp_path, name)
    shapes = jax.eval_shape(make_model(config).init, jax.random.key(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(params, shapes)
    params = jax.tree.map(np.asarray, params)
    for tensor, value in cases.tensors(cases.CASES[name]).items():
        np.testing.assert_array_equal(stored(config, params, tensor), value, err_msg=tensor)


def test_reads_several_files_by_their_index(tmp_path):
    tensors = cases.tensors(FIELDS)
    names = sorted(tensors)
    files = {"one.safetensors": names[:7], "two.safetensors": names[7:]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    params = load_params(CONFIG, open_safetensors(tmp_path))
    chex.assert_trees_all_equal(params, load_case(tmp_path / "single", NAME)[1])

    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names the file 'two\.safetensors', not there"):
        open_safetensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "../one.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"'\.\./one\.safetensors', not there"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("kind", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_reads_floats_of_any_width_into_the_param_dtype(kind, tmp_path):
    tensors = {name: value.astype(kind) for name, value in cases.tensors(FIELDS).items()}
    source = open_safetensors(write_folder(tmp_path, FIELDS, tensors))
    for dtype in ("float32", "bfloat16"):
        params = load_params(ModelConfig.from_hf(FIELDS, param_dtype=dtype), source)
        chex.assert_type(jax.tree.leaves(params), jnp.dtype(dtype))
        want = tensors["model.embed_tokens.weight"].astype(jnp.dtype(dtype))
        np.testing.assert_array_equal(params["embedding"], want)


def test_a_mesh_gets_each_shard_from_its_own_part_of_the_files(tmp_path):
    mesh = make_mesh(data=2, fsdp=2, tp=2)
    whole = open_safetensors(write_folder(tmp_path, FIELDS))
    source, read = counting(whole)
    params = load_params(CONFIG, source, shardings=functools.partial(param_shardings, mesh))
    expected = load_params(CONFIG, whole)
    chex.assert_trees_all_equal(params, expected)
    shardings = param_shardings(mesh, expected)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == shardings
    # 37 words divide over no axis, so the width's share is the most that is read of a tensor.
    assert sum(read) == sum(leaf.size for leaf in jax.tree.leaves(expected))
    assert max(read) == 37 * 12 // 2


def test_heads_may_be_split_too(tmp_path):
    mesh = make_mesh(tp=2)

    def split(shapes):
        def sharding(leaf):
            last = leaf.ndim - 1 if leaf.shape[-1] == CONFIG.head_dim else None
            axes = ["tp" if axis == last else None for axis in range(leaf.ndim)]
            return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))

        return jax.tree.map(sharding, shapes)

    folder = write_folder(tmp_path, FIELDS)
    params = load_params(CONFIG, open_safetensors(folder), shardings=split)
    query = params["layers"]["attention"]["query"]["kernel"]
    assert query.addressable_shards[0].data.shape == (2, 12, 4, 4)
    chex.assert_trees_all_equal(params, load_params(CONFIG, open_safetensors(folder)))


def test_the_host_never_holds_the_model_twice():
    fields = FIELDS | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8}
    shapes = cases.tensor_shapes(fields)

    def read(name, index):
        dims = zip(index, shapes[name], strict=True)
        return np.ones([len(range(*part.indices(size))) for part, size in dims], np.float32)

    config = ModelConfig.from_hf(fields)
    load_params(config, TensorSource("memory", shapes, read))
    tracemalloc.start()
    params = load_params(config, TensorSource("memory", shapes, read))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert total > 10e6
    assert peak < 1.2 * total


def test_one_error_lists_all_tensors_that_do_not_fit(tmp_path):
    tensors = cases.tensors(FIELDS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(32, np.float32)
    tensors["model.norm.weight"] = np.zeros(13, np.float32)
    with pytest.raises(ValueError, match="do not fit its config") as caught:
        load_params(CONFIG, open_safetensors(write_folder(tmp_path, FIELDS, tensors)))
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "1 missing: model.layers.1.mlp.up_proj.weight (20, 12)" in message
    assert "1 unexpected: model.layers.0.self_attn.q_proj.bias (32,)" in message
    assert "1 wrong shape: model.norm.weight is (13,), expected (12,)" in message


def test_a_long_list_of_tensors_is_cut_and_counted(tmp_path):
    fields = FIELDS | {"num_hidden_layers": 3}
    folder = write_folder(tmp_path, FIELDS, {"other": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match=r"30 missing: .*; and 10 more"):
        load_params(ModelConfig.from_hf(fields), open_safetensors(folder))


def test_a_tied_unembedding_may_be_stored_as_well_if_it_is_the_embedding(tmp_path):
    fields = cases.CASES["llama_group1_tied"]
    tensors = cases.tensors(fields)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)
    config = ModelConfig.from_hf(fields)
    params = load_params(config, open_safetensors(write_folder(tmp_path / "a", fields, tensors)))
    assert "unembedding" not in params

    tensors["lm_head.weight"][-1, -1] += 1
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens"):
        load_params(config, open_safetensors(write_folder(tmp_path / "b", fields, tensors)))


def test_refuses_files_that_hold_no_floats_or_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds neither model\.safetensors nor"):
        open_safetensors(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({"x": np.zeros(3, np.int8)}, file)
    with pytest.raises(ValueError, match="x is I8, not floats"):
        open_safetensors(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        open_safetensors(tmp_path)
