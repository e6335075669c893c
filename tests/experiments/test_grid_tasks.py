"""The experiments on FrozenLake and CliffWalking."""

import json

import numpy as np
import pytest

from experiments import cliff_walking, frozen_lake
from experiments.language import make_language
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from freshper_jax.rollout import ScriptedPolicy, collect
from tests.experiments.small import run_small

EXPERIMENTS = {"frozen_lake": frozen_lake.EXPERIMENT, "cliff_walking": cliff_walking.EXPERIMENT}
TASKS = [
    ("frozen_lake", "4x4"),
    ("frozen_lake", "8x8"),
    ("frozen_lake", "slippery-4x4"),
    ("frozen_lake", "fixed-4x4"),
    ("cliff_walking", "random"),
    ("cliff_walking", "standard"),
]
DRAWN = [pair for pair in TASKS if pair[1] not in ("fixed-4x4", "standard")]


def make(name, task, *flags):
    options = parse_options(EXPERIMENTS[name], [f"--task={task}", *flags])
    return options, EXPERIMENTS[name].make_task(options, Console())


def boards(env, episodes):
    """Returns the canonical form of each episode's first board."""
    found = set()
    for first in range(0, len(episodes.seeds), env.num_envs):
        indices = np.resize(
            episodes.options["start_indices"][first : first + env.num_envs], env.num_envs
        )
        env.reset(options={"start_indices": indices})
        for board in env.game.render(env.state, "codes"):
            turned = [np.rot90(b, q) for b in (board, board[:, ::-1]) for q in range(4)]
            found.add(min((b.shape, b.tobytes()) for b in turned))
    return found


@pytest.mark.parametrize(("name", "task"), DRAWN)
def test_no_map_serves_two_ends(name, task):
    _, made = make(name, task)
    shown = made.demonstrations(200, 6, 64)
    cloned = boards(shown.env, shown.episodes)
    checked = boards(made.make_env("train", 64, None), made.check_episodes(256))
    held_out = boards(made.make_env("held_out", 64, None), made.held_out_episodes(1024))
    assert (len(cloned), len(checked), len(held_out)) == (200, 256, 1024)
    assert cloned.isdisjoint(checked)
    assert held_out.isdisjoint(cloned | checked)
    trained = boards(made.make_env("train", 64, None), made.train_episodes(0, 1, 512))
    assert held_out.isdisjoint(trained)


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_a_tiny_policy_knows_every_word_and_a_row_holds_the_longest_episode(name, task):
    flags = ["--env.horizon=12"] if task in ("fixed-4x4", "standard") else []
    options, made = make(name, task, *flags)
    renderer = make_language(options, made).renderer
    env = made.make_env("train", 4, renderer)
    longest, turns = made.max_tokens(options.max_new_tokens, renderer), env.game.horizon
    # Three tokens of words that are no action: with the end of the turn, a whole reply.
    replies = [["Up" * 3] * turns] * 24
    trajectory, stats = collect(
        ScriptedPolicy(renderer, replies, options.max_new_tokens),
        env,
        renderer,
        made.train_episodes(0, 1, 24),
        max_tokens=longest,
        max_new_tokens=options.max_new_tokens,
    )
    assert not stats.cut.any()
    assert (stats.turns == turns).all()
    assert 0.6 * longest < trajectory.length.max() <= longest
    assert renderer.tokenizer.unk_token_id not in trajectory.tokens


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_demonstrations_are_optimal_play(name, task):
    options, made = make(name, task)
    shown = made.demonstrations(100, 13, 32)
    renderer = make_language(options, made).renderer
    _, stats = collect(
        ScriptedPolicy(renderer, shown.replies, options.max_new_tokens),
        shown.env,
        renderer,
        shown.episodes,
        max_tokens=made.max_tokens(options.max_new_tokens, renderer),
        max_new_tokens=options.max_new_tokens,
    )
    assert (stats.valid == 1).all()
    assert stats.turns.tolist() == [len(replies) for replies in shown.replies]
    if task in ("slippery-4x4", "fixed-4x4"):
        assert 0.2 < stats.success.mean() < 1
    else:
        assert stats.success.all()
        assert stats.turns.max() <= 13


def test_episodes_of_a_lone_map_differ_in_their_seeds():
    _, made = make("frozen_lake", "fixed-4x4")
    episodes = [made.train_episodes(0, 1, 64), made.held_out_episodes(64), made.check_episodes(64)]
    episodes.append(made.demonstrations(64, 6, 8).episodes)
    seeds = np.concatenate([one.seeds for one in episodes])
    assert len(np.unique(seeds)) == 256
    assert all((one.options["start_indices"] == 0).all() for one in episodes[:3])
    assert (made.train_episodes(0, 1, 64).seeds == episodes[0].seeds).all()
    assert (made.train_episodes(0, 2, 64).seeds != episodes[0].seeds).any()


def test_what_changes_the_episodes_changes_the_identity():
    plain = make("frozen_lake", "4x4")[1].identity
    assert make("frozen_lake", "4x4")[1].identity == plain
    for flags in (
        ["--env.success-rate=0.5"],
        ["--env.horizon=9"],
        ["--env.min-path=3"],
        ["--env.reward-scale=2"],
        ["--prompt=minimal"],
    ):
        assert make("frozen_lake", "4x4", *flags)[1].identity != plain


def test_models_with_words_get_the_full_instruction():
    _, made = make("frozen_lake", "4x4", "--preset=qwen2.5-0.5b")
    env = made.make_env("train", 2, None)
    assert "do not step into a hole" in env.system_prompt
    assert "slippery" not in env.system_prompt
    assert "Turn 1" in env.reset(seed=0)[0][0]
    _, slippery = make("frozen_lake", "slippery-4x4", "--preset=qwen2.5-0.5b")
    assert "slippery" in slippery.make_env("train", 2, None).system_prompt


def test_references_are_of_the_held_out_maps():
    random, optimal = make("cliff_walking", "standard")[1].references(1024)
    assert (optimal.success, optimal.score) == pytest.approx((1, -13))
    assert random.score == pytest.approx(-579.16, abs=0.01)
    random, optimal = make("frozen_lake", "paper")[1].references(1024)
    assert (optimal.success, optimal.score) == pytest.approx((1, 1))
    assert random.success == pytest.approx(0.219, abs=0.03)  # as measured on the paper's maps


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task=5x5"], "--task: got '5x5', expected one of 4x4, 8x8"),
        (["--prompt=poem"], "--prompt: got 'poem', expected one of minimal"),
        (["--env.success-rate=2"], "--env: success_rate must be from 0 to 1, not 2"),
        (["--env.horizon=0"], "--env: horizon must be at least 1, not 0"),
        (["--env.min-path=11"], r"--env: max_path must be at least min_path (11), not 10"),
        (["--task=fixed-4x4", "--env.min-path=2"], "--env: min_path: preset 'fixed-4x4' has one"),
        (["--env.reward-scale=0"], "--env: reward_scale must be positive"),
    ],
)
def test_bad_flags_are_refused_by_name(flags, message):
    with pytest.raises(OptionsError) as raised:
        make("frozen_lake", "4x4", *flags)
    assert message in str(raised.value)


def test_a_warm_start_without_a_short_enough_way_is_refused():
    _, made = make("frozen_lake", "corners-8x8")
    with pytest.raises(OptionsError, match=r"--warm-start.longest: got 6, expected at least 14"):
        made.demonstrations(10, 6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_runs_end_with_their_table(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHPER_CACHE", str(tmp_path / "cache"))
    path, printed = run_small(
        tmp_path / "run", "--max-tokens=400", "--iterations=2", experiment=EXPERIMENTS[name]
    )
    results = json.loads((path / "results.json").read_text())
    assert results["optimal play"]["success"] == pytest.approx(1.0)
    assert 0 < results["random actions"]["success"] < 0.3
    assert "optimal play" in printed
    assert f"{name}-" in printed
    assert "<answer>" in (path / "episodes.md").read_text()
