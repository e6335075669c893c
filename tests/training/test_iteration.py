"""What an iteration tells the buffer."""

import types

import numpy as np

from freshper_jax.training.iteration import group_names


def test_groups_have_one_name_each_in_all_iterations():
    trajectory = types.SimpleNamespace(group_id=np.repeat(np.arange(3, dtype=np.int32), 2))
    names = [group_names(trajectory, number) for number in range(4)]
    np.testing.assert_array_equal(names[0], [0, 0, 1, 1, 2, 2])
    assert len(np.unique(np.concatenate(names))) == 4 * 3
    assert all(each.dtype == np.int32 for each in names)
