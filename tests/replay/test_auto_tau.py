import chex
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from freshper_jax import replay
from freshper_jax.replay import AutoTau

EDGES = [0.0, *(2.0**k for k in range(23))]
CENTRES = [0.5, *(2.0 ** (k + 0.5) for k in range(23))]


def log_ratios(rng, variances):
    """Logs of log-normal ratios of mean 1; their ESS share is exp(-variance)."""
    return rng.normal(-variances / 2, np.sqrt(variances)).astype(np.float32)


def oracle(history, rule):
    """The rule of the docstring, in Python numbers, over batches of (age, log ratio)."""
    count, ratios, squares = (np.zeros(24) for _ in range(3))
    for ages, logs in history:
        for total in (count, ratios, squares):
            total *= rule.forgetting
        for age, log in zip(ages, logs, strict=True):
            octave = max(k for k in range(24) if EDGES[k] <= age)
            rho = np.exp(np.clip(float(log), -20, 20))
            count[octave] += 1
            ratios[octave] += rho
            squares[octave] += rho**2
    seen = [k for k in range(24) if count[k] >= rule.least_rows]
    if not seen:
        return rule.prior
    share = {k: ratios[k] ** 2 / (count[k] * squares[k]) for k in seen}
    for place, k in enumerate(seen):
        if share[k] <= rule.threshold:
            if place == 0:
                age = max(EDGES[k], 1.0)
            else:
                last = seen[place - 1]
                part = (share[last] - rule.threshold) / (share[last] - share[k])
                age = CENTRES[last] * (CENTRES[k] / CENTRES[last]) ** part
            return float(np.clip(rule.multiple * age, *rule.bounds))
    return float(np.clip(max(rule.prior, rule.multiple * 2.0 ** seen[-1]), *rule.bounds))


@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    rate=st.floats(0.001, 1.0),
    power=st.floats(0.3, 2.0),
    oldest=st.integers(1, 2000),
    batches=st.integers(0, 6),
    prior=st.floats(1.0, 500.0),
)
@hypothesis.settings(max_examples=60)
def test_the_rule_is_the_oracles(seed, rate, power, oldest, batches, prior):
    rng = np.random.default_rng(seed)
    rule = AutoTau(prior=prior, forgetting=0.9, least_rows=5.0)
    history = []
    for _ in range(batches):
        ages = rng.integers(0, oldest, 64).astype(np.int32)
        history.append((ages, log_ratios(rng, np.minimum(rate * ages**power, 50.0))))
    state, update = rule.init(), jax.jit(rule.update)
    for ages, logs in history:
        state = update(state, jnp.asarray(ages), jnp.asarray(logs))
    np.testing.assert_allclose(float(rule.tau(state)), oracle(history, rule), rtol=2e-3)


@pytest.mark.parametrize(
    ("variance", "crossing"),
    [
        (lambda age: 0.05 * age, np.log(2) / 0.05),  # linear: KL at a constant rate
        (lambda age: 0.2 * np.sqrt(age), (np.log(2) / 0.2) ** 2),  # concave, as measured
        (lambda age: 0.004 * age**2, np.sqrt(np.log(2) / 0.004)),  # convex: small steps
    ],
    ids=["linear", "concave", "convex"],
)
def test_a_known_crossing_is_found(variance, crossing):
    rng = np.random.default_rng(0)
    rule = AutoTau()
    ages = rng.integers(0, 64, 100_000).astype(np.int32)
    state = rule.update(rule.init(), ages, log_ratios(rng, variance(ages.astype(float))))
    # Within an octave ages differ twofold; the crossing is known to a fraction of that.
    assert abs(np.log2(float(rule.tau(state)) / (3 * crossing))) < 0.4


@pytest.mark.parametrize("prior", [3.0, 30.0, 300.0])
def test_tau_finds_its_level_from_far_off(prior):
    """Closed loop: the ages drawn follow the tau in use, as a buffer would draw them."""
    rng = np.random.default_rng(1)
    rule = AutoTau(prior=prior)
    state, update = rule.init(), jax.jit(rule.update)
    crossing = np.log(2) / 0.06
    found = []
    for clock in range(1, 400):
        tau = float(rule.tau(state))
        held = np.arange(clock)
        odds = np.exp(-0.6 * held / tau)
        ages = rng.choice(held, 64, p=odds / odds.sum()).astype(np.int32)
        state = update(state, ages, log_ratios(rng, 0.06 * ages.astype(float)))
        found.append(tau)
    late = np.array(found[200:])
    assert abs(np.log2(np.median(late) / (3 * crossing))) < 0.5
    assert late.max() / late.min() < 3


def test_without_evidence_tau_is_the_prior_and_without_a_crossing_it_grows():
    rule = AutoTau(prior=10.0, least_rows=8.0)
    state = rule.init()
    assert float(rule.tau(state)) == 10.0
    none = jnp.zeros(7)
    few = rule.update(state, jnp.full(7, 30), none)
    assert float(rule.tau(few)) == 10.0  # fewer rows than it takes
    enough = rule.update(few, jnp.full(8, 30), jnp.zeros(8))
    assert float(rule.tau(enough)) == 3 * 32  # the end of ages 16 to 31
    young = rule.update(state, jnp.full(8, 1), jnp.zeros(8))
    assert float(rule.tau(young)) == 10.0  # 3 * 2 is less than the prior
    assert rule.ess_shares(young).tolist()[:3] == [0.0, 1.0, 0.0]


def test_the_youngest_octave_below_counts_from_its_beginning():
    rule = AutoTau(least_rows=2.0)
    state = rule.update(rule.init(), jnp.array([8, 9, 9]), jnp.array([0.0, 0.0, 15.0]))
    assert float(rule.tau(state)) == 3 * 8
    state = rule.update(rule.init(), jnp.array([0, 0, 0]), jnp.array([0.0, 0.0, 19.0]))
    assert float(rule.tau(state)) == 3.0  # ages of 0 count as 1


def test_huge_ratios_and_bad_rows_do_no_harm():
    rule = AutoTau(least_rows=1.0)
    logs = jnp.array([1000.0, -1000.0, jnp.nan, jnp.inf, 3.0])
    where = jnp.array([True, True, True, True, False])
    state = rule.update(rule.init(), jnp.array([5, 5, 5, 5, 5]), logs, where)
    assert float(state.count[3]) == 2.0
    chex.assert_tree_all_finite(state)
    np.testing.assert_allclose(float(state.ratios[3]), np.exp(20.0), rtol=1e-6)
    assert np.isfinite(float(rule.tau(state)))


def test_bounds_hold():
    rule = AutoTau(prior=500.0, bounds=(4.0, 100.0), least_rows=2.0)
    assert float(rule.tau(rule.init())) == 100.0
    low = rule.update(rule.init(), jnp.array([1, 1, 1]), jnp.array([0.0, 0.0, 15.0]))
    assert float(rule.tau(low)) == 4.0


def test_it_compiles_once_and_drives_a_buffer_inside_jit():
    rule = AutoTau(prior=5.0)
    buffer = replay.make_buffer(capacity=64, tau=5.0)
    state = buffer.init(jnp.zeros(()))
    state, _ = buffer.add(state, jnp.arange(32.0), jnp.ones(32), 0)

    @jax.jit
    @chex.assert_max_traces(1)
    def draw(state, measured, key, clock):
        sample = buffer.sample(state, key, 16, clock, tau=rule.tau(measured))
        logs = -0.1 * sample.ages.astype(jnp.float32)
        return sample.ages, rule.update(measured, sample.ages, logs)

    measured = rule.init()
    for clock in range(1, 4):
        ages, measured = draw(state, measured, jax.random.key(clock), clock)
        assert ages.tolist() == [clock] * 16
    assert 46 < float(measured.count.sum()) < 48  # 16 a draw, the earlier ones forgotten a little


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": 0.0}, "prior must be positive and finite, got 0.0"),
        ({"multiple": float("inf")}, "multiple must be positive"),
        ({"threshold": 1.0}, r"threshold must lie in \(0, 1\), got 1.0"),
        ({"forgetting": 0.0}, r"forgetting must lie in \(0, 1\)"),
        ({"least_rows": -1.0}, "least_rows must be positive"),
        ({"bounds": (5.0, 2.0)}, "bounds must satisfy 0 < low <= high"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AutoTau(**options)


def test_the_measured_freshness_is_the_share_that_made_it():
    rng = np.random.default_rng(0)
    rule = AutoTau(forgetting=0.999)
    state, update = rule.init(), jax.jit(rule.update)
    for _ in range(400):
        ages = rng.integers(1, 128, 64).astype(np.int32)
        state = update(state, jnp.asarray(ages), jnp.asarray(log_ratios(rng, 0.05 * np.sqrt(ages))))
    ages = np.array([2, 5, 11, 22, 45, 90])  # near the middle of octaves
    curve = np.exp(rule.log_freshness(state, jnp.asarray(ages)))
    np.testing.assert_allclose(curve, np.exp(-0.05 * np.sqrt(ages)), rtol=0.06)
    curve = np.asarray(rule.log_freshness(state, jnp.arange(5000)))
    assert (np.diff(curve) <= 0).all()
    assert curve[-1] == curve[300]  # level where nothing was measured


def test_freshness_is_that_of_the_prior_before_there_is_evidence():
    rule = AutoTau(prior=20.0)
    ages = jnp.array([0, 10, 40])
    np.testing.assert_allclose(rule.log_freshness(rule.init(), ages), [0.0, -0.5, -2.0])
