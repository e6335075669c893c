"""Theory against closed forms, exact enumeration and the numbers printed in its page."""

import doctest
import math
import re
from pathlib import Path
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshper_jax import replay
from freshper_jax.replay import theory

PAGE = Path(__file__).parents[2] / "docs" / "theory.md"

LOG = st.one_of(st.floats(-30, 30, width=32), st.just(-math.inf))
# Few lengths, for each is compiled anew.
LOGS = st.sampled_from([1, 2, 9]).flatmap(lambda n: st.lists(LOG, min_size=n, max_size=n))
OFFSETS = st.sampled_from([-1e4, -90.0, 0.0, 90.0, 1e4])
MOST_ROWS = 6 * 9
# A behaviour policy by how many of n rows took each action, and a policy by its odds.
POLICIES = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 1)), min_size=2, max_size=6).map(
    lambda pairs: tuple(map(np.array, zip(*pairs, strict=True)))
)


def ess_of(log_weights):
    logs = np.asarray(log_weights, np.float64)
    if not (logs > -np.inf).any():
        return 0.0
    weights = np.exp(logs - logs.max())
    return weights.sum() ** 2 / (weights**2).sum()


def enumerate_rows(policies):
    """One row for each that the behaviour policy collected, so that means are exact."""
    counts, odds = policies
    behaviour, policy = counts / counts.sum(), odds / odds.sum()
    log_ratio = np.repeat(np.log(policy / behaviour), counts).astype(np.float32)
    # One length, so that one program serves all.
    where = np.arange(MOST_ROWS) < len(log_ratio)
    return behaviour, policy, np.resize(log_ratio, MOST_ROWS), where


class TestEffectiveSampleSize:
    @pytest.mark.parametrize(
        ("weights", "expected"),
        [
            ([1, 1, 1, 1], 4),
            ([0, 0, 5, 0], 1),
            ([3, 1], 1.6),
            ([0, 0, 0], 0),
            ([1e30, 1e30, 0], 2),
            ([], 0),
        ],
    )
    @pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
    def test_closed_forms(self, weights, expected, offset):
        with np.errstate(divide="ignore"):
            logs = np.log(np.array(weights, np.float32)) + np.float32(offset)
        # Near 1e4 a float32 logarithm itself has a step of 1e-3.
        np.testing.assert_allclose(
            theory.ess_of_log_weights(logs), expected, rtol=1e-6 if offset == 0 else 1e-3
        )

    @given(LOGS, OFFSETS, st.randoms(use_true_random=False))
    def test_any_offset_and_order(self, logs, offset, random):
        logs = np.array(logs, np.float32) + np.float32(offset)
        actual = theory.ess_of_log_weights(logs)
        assert actual.dtype == jnp.float32
        assert actual.shape == ()
        np.testing.assert_allclose(actual, ess_of(logs), rtol=1e-5)
        if (logs > -np.inf).any():
            assert 1 - 1e-6 <= actual <= len(logs) * (1 + 1e-6)
        order = random.sample(range(len(logs)), len(logs))
        np.testing.assert_allclose(theory.ess_of_log_weights(logs[order]), actual, rtol=1e-6)

    @given(LOGS, st.integers(0, 2**9 - 1))
    def test_masked_rows_are_as_good_as_absent(self, logs, bits):
        logs = np.array(logs, np.float32)
        where = np.array([bool(bits >> place & 1) for place in range(len(logs))])
        full = np.where(where, logs, np.float32(np.nan))
        np.testing.assert_allclose(
            theory.ess_of_log_weights(full, where=where), ess_of(logs[where]), rtol=1e-5
        )
        # Without any weight above zero there is nothing to reuse, and the divergence is infinite.
        with np.errstate(divide="ignore"):
            expected = np.log(max(where.sum(), 1)) - np.log(ess_of(logs[where]))
        np.testing.assert_allclose(
            theory.renyi2_divergence(full, where=where), expected, rtol=1e-5, atol=1e-6
        )

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_bad_weights_are_not_hidden(self, bad):
        logs = jnp.array([0.0, bad, -1.0])
        assert np.isnan(theory.ess_of_log_weights(logs))
        assert np.isnan(theory.renyi2_divergence(logs))

    def test_gradient_against_differences(self):
        logs = np.array([-1.0, 0.5, 0.2, -np.inf, 0.5], np.float32)
        actual = jax.grad(theory.ess_of_log_weights)(jnp.array(logs))
        step = 1e-5 * np.eye(5)
        expected = [(ess_of(logs + row) - ess_of(logs - row)) / 2e-5 for row in step]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("value", [-math.inf, 0.0])
    def test_gradient_is_finite_where_rows_are_alike(self, value):
        for function in (theory.ess_of_log_weights, theory.renyi2_divergence):
            assert np.isfinite(jax.grad(function)(jnp.full(3, value))).all()

    def test_shapes_that_do_not_fit(self):
        for function in (theory.ess_of_log_weights, theory.renyi2_divergence):
            with pytest.raises(AssertionError):
                function(jnp.zeros((2, 3)))
            with pytest.raises(AssertionError):
                function(jnp.zeros(3), where=jnp.ones(2, bool))


class TestDivergence:
    @given(POLICIES)
    def test_exact_enumeration(self, policies):
        behaviour, policy, log_ratio, where = enumerate_rows(policies)
        d2 = np.log((policy**2 / behaviour).sum())
        kl = max((policy * np.log(policy / behaviour)).sum(), 0.0)  # but for rounding
        variance = (behaviour * (policy / behaviour - 1) ** 2).sum()

        actual = theory.renyi2_divergence(log_ratio, where=where)
        np.testing.assert_allclose(actual, d2, rtol=1e-4, atol=1e-6)
        fraction = theory.ess_of_log_weights(log_ratio, where=where) / int(where.sum())
        np.testing.assert_allclose(fraction, theory.ess_fraction_from_renyi2(actual), rtol=1e-5)
        np.testing.assert_allclose(fraction, 1 / (1 + variance), rtol=1e-4)
        assert d2 >= kl - 1e-12
        assert fraction <= theory.ess_fraction_bound_from_kl(kl) * (1 + 1e-5)

    @given(LOGS, OFFSETS)
    def test_ratios_known_up_to_a_factor(self, logs, offset):
        logs = np.array(logs, np.float32) + np.float32(offset)
        d2 = theory.renyi2_divergence(logs)
        ess = theory.ess_of_log_weights(logs)
        assert d2 >= 0
        np.testing.assert_allclose(ess, len(logs) * theory.ess_fraction_from_renyi2(d2), rtol=1e-5)
        if (logs > -np.inf).any():
            assert d2 <= np.log(len(logs)) * (1 + 1e-6) + 1e-6
        else:
            assert d2 == np.inf

    def test_the_bound_is_met_where_the_ratio_is_one_value(self):
        # The policy never takes half of the behaviour's actions, and is alike in the others.
        log_ratio = jnp.array([jnp.log(2.0), jnp.log(2.0), -jnp.inf, -jnp.inf])
        np.testing.assert_allclose(theory.renyi2_divergence(log_ratio), np.log(2), rtol=1e-6)
        np.testing.assert_allclose(
            theory.ess_of_log_weights(log_ratio) / 4,
            theory.ess_fraction_bound_from_kl(math.log(2)),
            rtol=1e-6,
        )

    @pytest.mark.parametrize("shift", [0.1, 0.5, 1.0])
    def test_two_normal_distributions(self, shift):
        # Rows at the middles of equal shares of N(0, 1), the behaviour; the policy is N(shift, 1).
        count = 20_000
        places = np.array([NormalDist().inv_cdf((k + 0.5) / count) for k in range(count)])
        log_ratio = (shift * places - shift**2 / 2).astype(np.float32)
        np.testing.assert_allclose(theory.renyi2_divergence(log_ratio), shift**2, rtol=0.02)
        fraction = theory.ess_of_log_weights(log_ratio) / count
        np.testing.assert_allclose(fraction, np.exp(-(shift**2)), rtol=0.02)
        assert fraction < theory.ess_fraction_bound_from_kl(shift**2 / 2)

    def test_small_divergences_keep_their_digits(self):
        logs = (1e-3 * np.random.default_rng(0).normal(size=1000)).astype(np.float32)
        exact = logs.astype(np.float64)
        expected = np.log(np.exp(2 * exact).mean()) - 2 * np.log(np.exp(exact).mean())
        np.testing.assert_allclose(theory.renyi2_divergence(logs), expected, rtol=1e-3)
        assert theory.renyi2_divergence(np.full(1000, 0.1, np.float32)) == 0

    @given(POLICIES)
    def test_policies_that_are_close_have_twice_the_kl(self, policies):
        counts, odds = policies
        behaviour = counts / counts.sum()
        direction = odds - (behaviour * odds).sum()
        policy = behaviour * (1 + 1e-3 * direction)
        d2 = np.log((policy**2 / behaviour).sum())
        kl = (policy * np.log(policy / behaviour)).sum()
        np.testing.assert_allclose(d2, 2 * kl, rtol=1e-2, atol=1e-12)


POSITIVE = st.floats(0.0078125, 8192, width=32)


class TestClocks:
    @given(POSITIVE, st.floats(0.0625, 4, width=32))
    def test_half_lives_halve(self, tau, alpha):
        np.testing.assert_allclose(
            theory.freshness(theory.priority_half_life(tau), tau), 0.5, rtol=1e-5
        )
        half_life = theory.sampling_half_life(tau, alpha)
        np.testing.assert_allclose(theory.freshness(half_life, tau) ** alpha, 0.5, rtol=1e-5)
        np.testing.assert_allclose(
            theory.tau_from_half_life(half_life, alpha=alpha), tau, rtol=1e-5
        )
        np.testing.assert_allclose(
            theory.tau_from_half_life(theory.priority_half_life(tau)), tau, rtol=1e-5
        )

    @pytest.mark.parametrize("alpha", [0.3, 1.0])
    def test_half_life_in_a_buffer(self, alpha):
        tau = float(theory.tau_from_half_life(40, alpha=alpha))
        buffer = replay.make_buffer(capacity=2, alpha=alpha, tau=tau)
        state = buffer.init(jnp.zeros(()))
        for clock in (100, 140):
            state, _ = buffer.add(state, np.zeros(1, np.float32), np.ones(1), clock)
        np.testing.assert_allclose(buffer.probabilities(state), [1 / 3, 2 / 3], rtol=1e-5)

    def test_no_ageing(self):
        assert theory.priority_half_life(math.inf) == np.inf
        assert theory.sampling_half_life(10, 0) == np.inf
        assert theory.sampling_half_life(math.inf, 0) == np.inf
        assert theory.tau_from_half_life(math.inf) == np.inf
        assert theory.tau_from_drift_rate(0) == np.inf
        assert theory.freshness(10**6, math.inf) == 1
        for spacing in (0, 3):
            assert theory.mean_drawn_age(math.inf, 0.6, spacing=spacing) == np.inf
            assert theory.mean_drawn_age(10, 0, spacing=spacing) == np.inf

    @given(POSITIVE, st.floats(0, 50, width=32))
    def test_drift_at_the_rate_of_tau_meets_the_bound(self, rate, age):
        np.testing.assert_allclose(
            theory.freshness(age, theory.tau_from_drift_rate(rate)),
            theory.ess_fraction_bound_from_kl(rate * age),
            rtol=1e-4,
            atol=1e-30,
        )

    @pytest.mark.parametrize("spacing", [0.01, 1.0, 3.0, 500.0])
    @pytest.mark.parametrize(("tau", "alpha"), [(10.0, 0.6), (30.0, 1.0), (1.0, 2.0)])
    def test_mean_drawn_age_is_that_of_a_long_series(self, tau, alpha, spacing):
        ages = spacing * np.arange(200_000)
        weights = np.exp(-alpha * ages / tau)
        np.testing.assert_allclose(
            theory.mean_drawn_age(tau, alpha, spacing=spacing),
            (weights * ages).sum() / weights.sum(),
            rtol=1e-5,
            atol=1e-30,
        )

    def test_mean_drawn_age_of_steady_arrival(self):
        np.testing.assert_allclose(theory.mean_drawn_age(12, 0.6), 20, rtol=1e-6)
        np.testing.assert_allclose(theory.mean_drawn_age(12, 0.6, spacing=1e-6), 20, rtol=1e-6)

    def test_arrays_of_any_shape_and_kind(self):
        ages = np.arange(6, dtype=np.int32).reshape(2, 3)
        expected = np.exp(-ages / 4)
        for age in (ages, jnp.array(ages), jnp.array(ages, jnp.float16)):
            for tau in (4, 4.0, np.float32(4), jnp.int32(4), np.full((2, 3), 4.0)):
                actual = theory.freshness(age, tau)
                assert actual.dtype == jnp.float32
                np.testing.assert_allclose(actual, expected, rtol=1e-6)


CALLS = [
    (theory.ess_of_log_weights, (jnp.array([0.1, -2.0, -jnp.inf, 0.3]),)),
    (theory.renyi2_divergence, (jnp.array([0.1, -2.0, -jnp.inf, 0.3]),)),
    (theory.ess_fraction_from_renyi2, (0.3,)),
    (theory.ess_fraction_bound_from_kl, (0.3,)),
    (theory.freshness, (7, 12.5)),
    (theory.priority_half_life, (12.5,)),
    (theory.sampling_half_life, (12.5, 0.6)),
    (theory.tau_from_half_life, (12.5,)),
    (theory.tau_from_drift_rate, (0.02,)),
    (theory.mean_drawn_age, (12.5, 0.6)),
]


def test_every_function_is_called():
    assert {function.__name__ for function, _ in CALLS} == set(theory.__all__)


@pytest.mark.parametrize(("function", "arguments"), CALLS)
def test_jit_and_vmap_change_nothing(function, arguments):
    expected = function(*arguments)
    assert expected.dtype == jnp.float32
    np.testing.assert_allclose(jax.jit(function)(*arguments), expected, rtol=1e-6)
    doubled = [jnp.stack([jnp.asarray(argument)] * 2) for argument in arguments]
    np.testing.assert_allclose(jax.vmap(function)(*doubled), [expected] * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.ess_fraction_from_renyi2(-0.1), "d2 must be at least 0, got -0.1"),
        (lambda: theory.ess_fraction_bound_from_kl(math.nan), "kl must be at least 0, got nan"),
        (lambda: theory.freshness(-1, 5), "age must be finite and at least 0, got -1"),
        (lambda: theory.freshness(math.inf, 5), "age .* got inf"),
        (lambda: theory.freshness(1, 0), "tau must be above 0, got 0"),
        (lambda: theory.priority_half_life(-3.0), "tau must be above 0, got -3.0"),
        (lambda: theory.sampling_half_life(3, -1), "alpha must be finite and at least 0, got -1"),
        (lambda: theory.sampling_half_life(3, math.inf), "alpha"),
        (lambda: theory.tau_from_half_life(0), "half_life must be above 0, got 0"),
        (lambda: theory.tau_from_half_life(1, alpha=0), "alpha must be finite and above 0, got 0"),
        (lambda: theory.tau_from_drift_rate(-1e-3), "rate must be finite and at least 0"),
        (lambda: theory.tau_from_drift_rate(np.float32(np.nan)), "rate .* got nan"),
        (lambda: theory.mean_drawn_age(10, 0.6, spacing=-1), "spacing"),
    ],
)
def test_numbers_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class TestPage:
    """Each number of docs/theory.md follows from the formulas."""

    def rows(self, heading):
        """Reads the table whose first column has this heading."""
        lines = PAGE.read_text().split(f"\n| {heading} |", 1)[1].splitlines()[2:]
        cells = [re.findall(r"[^|\s]+", line) for line in lines[: lines.index("")]]
        assert len(cells) > 2
        return cells

    def test_sessions(self):
        test = doctest.DocTestParser().get_doctest(
            "\n".join(re.findall(r"^```pycon\n(.*?)^```", PAGE.read_text(), re.S | re.M)),
            {},
            PAGE.name,
            str(PAGE),
            0,
        )
        runner = doctest.DocTestRunner(verbose=False)
        report = []
        assert runner.run(test, out=report.append).failed == 0, "".join(report)
        assert runner.tries > 5

    def test_functions(self):
        named = re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.M)
        assert sorted(named) == theory.__all__

    def test_normal_distributions(self):
        for shift, *printed in self.rows("shift"):
            kl, d2 = float(shift) ** 2 / 2, float(shift) ** 2
            exact = theory.ess_fraction_from_renyi2(d2)
            bound = theory.ess_fraction_bound_from_kl(kl)
            assert printed == [f"{value:.3f}" for value in (kl, d2, exact, bound)]

    def test_half_lives(self):
        ratio = (1 + 1e-6) / 1e-6
        for tau, *printed in self.rows("tau"):
            tau = float(tau)
            values = (
                theory.priority_half_life(tau),
                theory.sampling_half_life(tau, 0.6),
                theory.mean_drawn_age(tau, 0.6),
                tau * math.log(ratio),
            )
            assert printed == [f"{value:.1f}" for value in values]
            assert float(theory.freshness(values[-1], tau)) == pytest.approx(1 / ratio, rel=1e-4)

    def test_buffer_maximum(self):
        alpha, beta, tau = 0.6, 0.4, 10.0
        for oldest, *printed in self.rows("A / tau"):
            oldest = float(oldest) * tau
            ages = (np.arange(200_000) + 0.5) / 200_000 * oldest
            draws = np.exp(-alpha * ages / tau)
            draws /= draws.sum()
            # The least likely row is the oldest one.
            weights = np.exp(-alpha * beta * (oldest - ages) / tau)
            values = (np.exp(-alpha * beta * oldest / tau), (draws * weights).sum())
            assert printed == [f"{value:.2g}" for value in values]
        assert f"{(1e-6) ** (alpha * beta):.3f}" == "0.036"

    def test_batch_maximum(self):
        # The oldest of 64 independent draws, by its distribution function.
        ages = np.linspace(0, 40, 400_001)
        mean = np.trapezoid(1 - (1 - np.exp(-ages)) ** 64, ages)
        harmonic = sum(1 / k for k in range(1, 65))
        assert mean == pytest.approx(harmonic, rel=1e-6)
        assert f"{math.exp(-0.4 * harmonic):.2f}" == "0.15"
        assert "`exp(-beta H_B)`: 0.15 for 64 draws" in PAGE.read_text()
        assert "a row of base 1 has weight 0.036" in PAGE.read_text()
