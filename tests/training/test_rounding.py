import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.training.rounding import round_stochastically

STEP = 2.0**-7  # between neighbouring bfloat16 in [1, 2)


def rounded(key, values, dtype=jnp.bfloat16):
    return np.asarray(round_stochastically(key, values, values.astype(dtype)).astype(jnp.float32))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_mean_is_the_number_and_only_its_neighbours_are_drawn(sign, get_key):
    shares = np.array([0.0, 0.1, 0.5, 0.93])
    exact = sign * (1.0 + shares * STEP)
    count = 20_000
    values = jnp.broadcast_to(jnp.asarray(exact, jnp.float32), (count, 4))
    drawn = rounded(get_key(), values)
    for column, share in zip(drawn.T, shares, strict=True):
        assert set(np.unique(column)) <= {sign, np.float32(sign * (1.0 + STEP))}
        bound = 4 * STEP * np.sqrt(share * (1 - share) / count)
        assert abs(column.mean(dtype=np.float64) - sign * (1.0 + share * STEP)) <= bound + 1e-9


def test_what_bfloat16_holds_or_is_not_finite_stays(get_key):
    values = jnp.array([0.0, -0.0, 1.5, -3.0, jnp.inf, -jnp.inf, jnp.nan, 2.0**-120])
    np.testing.assert_array_equal(rounded(get_key(), values), values)


def test_noise_is_a_function_of_the_key_and_differs_between_arrays():
    values = {"a": jnp.full(64, 1.003), "b": jnp.full(64, 1.003)}
    like = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), values)
    first, again, other = (
        round_stochastically(jax.random.key(seed), values, like) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.array_equal(first["a"], other["a"])
    assert not np.array_equal(first["a"], first["b"])


def test_other_dtypes_pass_or_are_refused(get_key):
    values = {"count": jnp.int32(7), "wide": jnp.float32(1.003)}
    same = round_stochastically(get_key(), values, values)
    assert same["count"] is values["count"]
    assert same["wide"] is values["wide"]
    with pytest.raises(TypeError, match="cannot round float32 to float16"):
        round_stochastically(get_key(), jnp.float32(1.0), jnp.float16(1.0))
