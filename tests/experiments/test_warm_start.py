import dataclasses
import io

import chex
import numpy as np
import pytest
import rich.console

from envs.sokoban import canonical_hashes
from experiments.build import build, settle_options
from experiments.language import make_language
from experiments.options import OptionsError
from experiments.progress import Console
from experiments.runner import parse_options
from experiments.sokoban import EXPERIMENT, make_task
from experiments.warm_start import demonstrate, starting_params

FLAGS = (
    "--out=unused",
    "--episodes=8",
    "--warm-start.traces=6",
    "--warm-start.longest=3",
    "--warm-start.batch=16",
    "--warm-start.max-updates=4",
    "--warm-start.check-every=2",
    "--learning.microbatches=1",
)


class Heard(Console):
    """A console whose words can be read."""

    def __init__(self):
        super().__init__(rich.console.Console(file=io.StringIO(), width=200))

    @property
    def words(self):
        return self.out.file.getvalue()


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRESHPER_CACHE", str(tmp_path_factory.mktemp("cache")))
        task = make_task(parse_options(EXPERIMENT, []), Console())
        options = parse_options(EXPERIMENT, FLAGS)
        language = make_language(options, task)
        options = settle_options(options, task, language.renderer)
        yield task, options, build(options, task, language)


def test_demonstrations_solve_their_levels_in_the_fewest_moves(setting):
    task, options, parts = setting
    shown = demonstrate(options, task, parts)
    assert len(shown.length) == 6 * 8  # each level and its seven mirror images
    assert (np.asarray(shown.return_) > 10).all()
    replies = shown.response_mask.sum(axis=1)
    assert set(np.unique(replies)) <= {4, 8, 12}
    assert shown.tokens.shape[1] % 32 == 0


def test_no_level_serves_two_ends(setting):
    task, options, _ = setting
    count = options.evaluation.final_episodes
    env = task.make_env("train", 4 * options.episodes, None)

    def codes(env, episodes):
        indices = episodes.options["start_indices"]
        shown = []
        for start in range(0, len(indices), env.num_envs):
            rows = np.resize(indices[start : start + env.num_envs], env.num_envs)
            env.reset(options={"start_indices": rows})
            shown.append(env.state.boards.cells.copy())
        return set(canonical_hashes(np.concatenate(shown)).tolist())

    demonstrations = task.demonstrations(400, 6, 4)
    cloned = codes(demonstrations.env, demonstrations.episodes)
    checked = codes(env, task.check_episodes(256))
    held_out = codes(task.make_env("held_out", 1, None), task.held_out_episodes(count))
    assert (len(cloned), len(checked), len(held_out)) == (400, 256, count)
    assert cloned.isdisjoint(checked)
    assert cloned.isdisjoint(held_out)
    assert checked.isdisjoint(held_out)
    seen = codes(env, task.train_episodes(0, 7, 64))
    assert seen.isdisjoint(held_out)


def test_training_levels_are_a_function_of_seed_and_iteration(setting):
    task, *_ = setting
    one, same, later, other = (
        task.train_episodes(*at, 16).seeds for at in ((3, 5), (3, 5), (3, 6), (4, 5))
    )
    np.testing.assert_array_equal(one, same)
    assert (one != later).any()
    assert (one != other).any()


def test_the_clone_is_cached_and_says_what_it_is(setting):
    task, options, parts = setting
    first, second = Heard(), Heard()
    cloned = starting_params(options, task, parts, first)
    assert "cloning 48 solutions of at most 3 turns, mirror images included" in first.words
    assert "after 4 updates, short of the 30% aimed at" in first.words
    again = starting_params(options, task, parts, second)
    assert "cloned before" in second.words
    chex.assert_trees_all_equal(cloned, again)


def test_a_batch_larger_than_the_traces_is_refused(setting):
    task, options, parts = setting
    larger = dataclasses.replace(options.warm_start, batch=64)
    with pytest.raises(OptionsError, match=r"--warm-start\.batch: got 64, expected at most"):
        starting_params(dataclasses.replace(options, warm_start=larger), task, parts, Heard())
