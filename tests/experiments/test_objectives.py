"""Objectives and advantages, from flags to one iteration on episodes played before."""

import functools
import shutil
import warnings

import jax
import numpy as np
import pytest

from experiments import build as building
from experiments import language as speaking
from experiments.build import build, init_run_state, run_shardings, settle_options
from experiments.language import make_language
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from experiments.sokoban import EXPERIMENT
from freshper_jax.models import preset, without_value_head
from freshper_jax.training import latest_step
from tests.experiments.small import FLAGS, run_small
from tests.experiments.test_run import history, parameters

GROUPED = ("--learning.advantage=grpo", "--group-size=4")
CASES = {
    "decoupled": ("--learning.objective=decoupled", "--learning.steps=2"),
    "gspo": ("--learning.objective=gspo", *GROUPED, "--replay.strategy=groups"),
    "grpo": (*GROUPED, "--learning.no-group-std"),
    "gae": ("--learning.advantage=gae", "--learning.value-clip=0.2", "--replay.priority=td_error"),
    "vtrace": (
        "--learning.advantage=vtrace",
        "--learning.objective=tis",
        "--replay.priority=td_error",
    ),
}
SHALLOW = functools.partial(preset, num_hidden_layers=1)
SPEED = 0.97 * 0.95  # the default discount times the default trace


@pytest.fixture(scope="module", autouse=True)
def shallow(tmp_path_factory):
    """A policy of one layer, which compiles sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(speaking, "preset", SHALLOW)
        yield


def prepare(name, tmp_path, *others):
    options = parse_options(EXPERIMENT, [*FLAGS, f"--out={tmp_path}", *CASES[name], *others])
    task = EXPERIMENT.make_task(options, Console())
    language = make_language(options, task)
    options = settle_options(options, task, language.renderer)
    parts = build(options, task, language)
    params = language.load(jax.random.key(0), None)
    state = init_run_state(options, parts, params)
    return parts, jax.device_put(state, run_shardings(parts, state))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Eight episodes of the first policy, in two groups, each with a reward for its last word."""
    with pytest.MonkeyPatch.context() as patch:
        collect, found = building.collect, []
        patch.setattr(building, "collect", lambda *a, **k: found.append(collect(*a, **k)) or 1 / 0)
        parts, state = prepare("grpo", tmp_path_factory.mktemp("run"))
        with pytest.raises(ZeroDivisionError):
            parts.make_iterate(None)(state)
    trajectory, episodes = found[0]
    mask, rewards = trajectory.response_mask, np.zeros_like(trajectory.rewards)
    for row, reward in enumerate((1, 0, 0, 3, 2, -1, 2, 2)):
        rewards[row, np.flatnonzero(mask[row])[-1]] = reward
    return trajectory.replace(rewards=rewards, return_=rewards.sum(axis=1)), episodes


@pytest.fixture(scope="module")
def iterated(played, tmp_path_factory):
    """Of each case, once: the state before and after an iteration on those episodes."""
    done = {}

    def iterate(name):
        if name not in done:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(building, "collect", lambda *_, **__: played)
                parts, state = prepare(name, tmp_path_factory.mktemp("run"))
                before = jax.tree.map(np.asarray, state.train.params)
                state, metrics = parts.make_iterate(before)(state)
                done[name] = before, state, metrics
        return done[name]

    return iterate


def cases(*names):
    """Each name as a parameter; those are slow whose parts are tested on their own."""
    slow = ("decoupled", "gspo")
    return [pytest.param(n, marks=[pytest.mark.slow] if n in slow else []) for n in names]


@pytest.mark.parametrize("name", cases(*CASES))
def test_every_objective_learns_from_fresh_and_replayed_episodes(name, iterated):
    before, state, metrics = iterated(name)
    steps = 2 if name == "decoupled" else 1
    assert (int(state.train.step), int(state.train.skipped)) == (3 * steps, 0)
    assert metrics["fresh/kl_k3"] < 1e-9
    numbers = [value for value in metrics.values() if not isinstance(value, list)]
    assert np.all(np.isfinite(numbers))
    critic = name in ("gae", "vtrace")
    assert ("replay/td_error" in metrics) == ("value_head" in before) == critic
    moved = jax.tree.map(lambda a, b: np.any(np.asarray(a) != b), state.train.params, before)
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize("name", cases("grpo", "gspo"))
def test_grpo_keeps_what_each_episode_has_over_its_group(name, played, iterated):
    trajectory, _ = played
    returns = trajectory.return_.reshape(2, 4)
    centred = returns - returns.mean(axis=1, keepdims=True)
    scaled = centred / returns.std(axis=1, keepdims=True)
    each = (centred if name == "grpo" else scaled).reshape(8, 1)
    kept = iterated(name)[1].replay.data.advantages[:8]
    want = np.where(trajectory.response_mask, each, 0.0)
    np.testing.assert_allclose(kept, want, rtol=1e-4, atol=1e-5)


def test_gae_keeps_what_values_should_have_been(played, iterated):
    trajectory, _ = played
    want = np.zeros_like(trajectory.rewards)
    for row, places in enumerate(map(np.flatnonzero, trajectory.response_mask)):
        ahead = np.arange(len(places))[::-1]
        want[row, places] = SPEED**ahead * trajectory.return_[row]  # a new head values all 0
    data = iterated("gae")[1].replay.data
    np.testing.assert_allclose(data.value_targets[:8], want, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(data.values[:8], 0.0)
    inside = want[trajectory.response_mask]
    whitened = (want - inside.mean()) / inside.std()
    kept = np.where(trajectory.response_mask, whitened, 0.0)
    np.testing.assert_allclose(data.advantages[:8], kept, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["gae", "vtrace"])
def test_td_errors_are_priorities_until_a_row_is_replayed(name, played, iterated):
    trajectory, _ = played
    surprise = np.abs(trajectory.return_) / trajectory.response_mask.sum(axis=1) + 1e-6
    replay = iterated(name)[1].replay
    priorities = np.exp(np.asarray(replay.log_base)[:8])
    drawn = np.asarray(replay.draws)[:8] > 0
    assert 0 < drawn.sum() < 8
    np.testing.assert_allclose(priorities[~drawn], surprise[~drawn], rtol=1e-4)
    assert np.all(np.abs(priorities[drawn] / surprise[drawn] - 1) > 1e-4)


@pytest.mark.slow
def test_a_critic_on_a_mesh_learns_what_it_learns_on_one_device(played, iterated, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "collect", lambda *_, **__: played)
        parts, state = prepare("gae", tmp_path, "--mesh.fsdp=2")
        before = jax.tree.map(np.asarray, state.train.params)
        state, metrics = parts.make_iterate(before)(state)
    alone = iterated("gae")[2]
    for name in ("fresh/loss", "fresh/value_loss", "fresh/td_error", "fresh/grad_norm"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6)
    assert len(state.train.params["value_head"]["kernel"].sharding.device_set) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--learning.advantage=grpo",), r"--group-size: got 1, expected an integer of at least 2"),
        (
            (*GROUPED, "--learning.advantage-clip=1"),
            r"--learning.advantage-clip: got 1.0, expected None with --learning.advantage grpo",
        ),
        (
            ("--replay.priority=td_error",),
            r"--replay.priority: got td_error, .* without --learning.advantage gae or vtrace",
        ),
        (
            ("--replay.priority=advantage", "--learning.advantage=vtrace"),
            r"--replay.priority: got advantage, expected any other with .* vtrace",
        ),
        (
            ("--learning.value-clip=1",),
            r"--learning.value-clip: got 1.0, expected None without --learning.advantage gae",
        ),
        (("--learning.steps=0",), r"--learning.steps: got 0, expected an integer of at least 1"),
        (("--learning.ratio-cap=0",), r"--learning.ratio-cap: got 0.0, expected a number above 0"),
        (("--learning.trace=2",), r"--learning.trace: got 2.0, expected in \[0, 1\]"),
        (
            ("--learning.trace-caps", "1", "2"),
            r"--learning.trace-caps: got \(1.0, 2.0\), .*the first not below the second",
        ),
        (("--learning.value-coefficient=0",), r"--learning.value-coefficient: got 0.0"),
    ],
)
def test_what_cannot_work_together_is_refused(flags, message):
    with pytest.raises(OptionsError, match=message):
        parse_options(EXPERIMENT, flags)


@pytest.mark.slow
def test_a_run_with_a_critic_resumes_bit_for_bit(tmp_path):
    flags = ("--evaluation.every=0", *CASES["gae"])
    whole, _ = run_small(tmp_path / "whole", *flags)
    cut = shutil.copytree(whole, tmp_path / "cut")
    newest = latest_step(cut / "checkpoints")
    shutil.rmtree(cut / "checkpoints" / f"{newest:08d}")
    run_small(cut, "--resume", *flags)
    assert history(cut) == history(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended, resumed = parameters(whole), parameters(cut)
    assert set(ended) - set(without_value_head(ended)) == {"value_head"}
    jax.tree.map(np.testing.assert_array_equal, ended, resumed)
