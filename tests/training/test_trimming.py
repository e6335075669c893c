import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax.training.trimming import filled_columns, trim_widths, trimmed


def test_columns_are_filled_up_to_the_last_response_token():
    mask = jnp.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]], bool)
    np.testing.assert_array_equal(filled_columns(mask), [4, 0, 5, 1])


def test_widths_are_equal_steps_up_to_all_columns():
    assert trim_widths(288, 3) == (96, 192, 288)
    assert trim_widths(10, 4) == (3, 5, 8, 10)
    assert trim_widths(2, 6) == (1, 2)


@pytest.mark.parametrize("columns", range(11))
def test_the_narrowest_width_that_holds_the_columns_is_read(columns):
    def score(params, tokens, temperature):
        return params * tokens, jnp.full(tokens.shape, tokens.shape[1])

    tokens = jnp.arange(1, 21, dtype=jnp.int32).reshape(2, 10)
    values, width = trimmed(score, 4)(3, tokens, jnp.ones(2), jnp.int32(columns))
    expected = next(w for w in (3, 5, 8, 10) if w >= columns)
    kept = np.arange(10)[None, :] < expected
    np.testing.assert_array_equal(values, np.where(kept, 3 * np.asarray(tokens), 0))
    np.testing.assert_array_equal(width, np.where(kept, expected, 0).repeat(2, axis=0))
