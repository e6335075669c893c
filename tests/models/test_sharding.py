import chex
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from freshper_jax.models import (
    PartitionRules,
    attention,
    make_mesh,
    make_model,
    param_partitions,
    param_shardings,
    row_sharding,
    scoring,
)
from tests.models.common import small_config, small_model


def test_mesh_has_all_axes_of_auto_type():
    mesh = make_mesh(data=2, tp=2)
    assert dict(mesh.shape) == {"data": 2, "fsdp": 1, "tp": 2}
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert dict(make_mesh().shape) == {"data": 1, "fsdp": 1, "tp": 1}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"data": 0}, "mesh axis data must be at least 1, got 0"),
        ({"data": 4, "tp": 4}, r"a mesh of \(4, 1, 4\) needs 16 devices, got 8"),
    ],
)
def test_refuses_a_mesh_that_cannot_be(sizes, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(**sizes)


def test_partitions_by_path_and_replicates_what_does_not_divide():
    mesh = make_mesh(fsdp=2, tp=4)
    shapes = jax.eval_shape(make_model(small_config(vocab_size=16)).init, jax.random.key(0))
    specs = param_partitions(mesh, shapes)
    assert specs["embedding"] == PartitionSpec("tp", "fsdp")
    attention = specs["layers"]["attention"]
    assert attention["query"]["kernel"] == PartitionSpec(None, "fsdp", "tp", None)
    # Two heads of keys, four ways: each has them all.
    assert attention["key"]["kernel"] == PartitionSpec(None, "fsdp", None, None)
    assert attention["output"] == PartitionSpec(None, "tp", None, "fsdp")
    assert specs["layers"]["feed_forward"]["down"] == PartitionSpec(None, "tp", "fsdp")
    assert specs["final_norm"]["scale"] == PartitionSpec(None)


def test_a_parameter_without_a_rule_is_an_error():
    rules = PartitionRules(((r"^embedding$", PartitionSpec()),))
    with pytest.raises(ValueError, match="no partition rule matches the parameter 'head/w'"):
        param_partitions(make_mesh(), {"head": {"w": np.zeros(3)}}, rules=rules)


@pytest.mark.parametrize("parts", [False, True], ids=["at once", "in parts"])
def test_sharded_scores_and_gradients_equal_those_of_one_device(monkeypatch, parts):
    if parts:  # attention row by row, and the scores of a mask in chunks of two positions
        monkeypatch.setattr(attention, "_CACHED_ELEMENTS", 0)
        monkeypatch.setattr(scoring, "_CHUNK_ELEMENTS", 2 * 4 * 13)
    model, params = small_model(num_key_value_heads=1)
    generator = np.random.default_rng(0)
    tokens = generator.integers(13, size=(4, 10), dtype=np.int32)
    mask = generator.random((4, 10)) < 0.4 if parts else None

    @jax.jit
    def objective(params, tokens):
        def total(params):
            log_probs, entropy = model.token_log_probs(params, tokens, 1.0, mask)
            return log_probs.sum(), (log_probs, entropy)

        return jax.grad(total, has_aux=True)(params)

    mesh = make_mesh(data=2, fsdp=2, tp=2)
    shardings = param_shardings(mesh, params)
    placed = jax.device_put(params, shardings)
    rows = jax.device_put(tokens, row_sharding(mesh))
    gradient, scores = objective(placed, rows)
    assert not placed["layers"]["feed_forward"]["gate"].is_fully_replicated
    chex.assert_trees_all_close((gradient, scores), objective(params, tokens), rtol=1e-4, atol=1e-4)
