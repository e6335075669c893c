import hypothesis
import hypothesis.strategies as st
import numpy as np

from envs.seeds import indices_of_seeds, scramble, uniform

M = (1 << 64) - 1


def splitmix64(x):
    """The published mixer, in Python integers."""
    z = (x + 0x9E3779B97F4A7C15) & M
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M
    return z ^ (z >> 31)


@hypothesis.given(st.lists(st.integers(0, M), min_size=1, max_size=5))
def test_scramble_is_splitmix64(values):
    found = scramble(np.array(values, np.uint64)).tolist()
    assert found == [splitmix64(value) for value in values]


@hypothesis.given(st.integers(0, M), st.integers(0, 1000), st.integers(1, 10**9))
def test_numbers_depend_on_nothing_but_seed_and_turn(seed, turn, count):
    seeds, turns = np.array([seed, 7], np.uint64), np.array([turn, 3], np.int32)
    number = uniform(seeds, turns)[0]
    assert number == (splitmix64(splitmix64(seed) ^ turn) >> 11) / 2**53
    assert number == uniform(seeds[:1], turns[:1])[0]
    assert indices_of_seeds(seeds[:1], count)[0] == splitmix64(seed) % count


def test_numbers_are_uniform_over_seeds_and_over_turns():
    for seeds, turns in (
        (np.arange(100_000, dtype=np.uint64), np.zeros(100_000, int)),
        (np.zeros(100_000, np.uint64), np.arange(100_000)),
    ):
        counts = np.bincount((uniform(seeds, turns) * 50).astype(int), minlength=50)
        assert ((counts - 2000) ** 2 / 2000).sum() < 85.4  # chi-square, 49 degrees, 0.1 %
