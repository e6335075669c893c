import numpy as np
import pytest

from freshper_jax.rollout import (
    Episodes,
    ScriptedPolicy,
    collect,
    make_chat_renderer,
    make_word_tokenizer,
)
from tests.rollout.counting import CountdownEnv

WORDS = ["Count.", *"0123456789", "no"]


@pytest.fixture(scope="module")
def renderer():
    return make_chat_renderer(make_word_tokenizer(WORDS))


def play(renderer, seeds, replies, rows, *, max_tokens=64, group_size=1):
    env = CountdownEnv(rows)
    policy = ScriptedPolicy(renderer, replies, max_new_tokens=3)
    episodes = Episodes.of(seeds).repeat(group_size)
    return collect(
        policy, env, renderer, episodes, max_tokens=max_tokens, max_new_tokens=3, policy_version=7
    )


def test_a_row_is_the_conversation_token_by_token(renderer):
    trajectory, stats = play(renderer, [1], [["2", "no", "1"]], rows=1)
    text = renderer.tokenizer.decode(trajectory.tokens[0, : trajectory.length[0]])
    assert text == (
        "<|system|>Count.<|end|><|user|>2<|end|><|assistant|>2<|end|>"
        "<|user|>1<|end|><|assistant|>no<|end|><|user|>1<|end|><|assistant|>1<|end|>"
    )
    sampled = renderer.tokenizer.decode(trajectory.tokens[0][trajectory.response_mask[0]])
    assert sampled == "2<|end|>no<|end|>1<|end|>"
    # Rewards lie on the end-of-turn tokens, penalties included; the score leaves them out.
    placed = trajectory.rewards[0][trajectory.rewards[0] != 0]
    np.testing.assert_allclose(placed, [1.0, -1.25, 1.0])
    ends = np.flatnonzero(trajectory.rewards[0])
    assert [renderer.tokenizer.decode([i]) for i in trajectory.tokens[0, ends]] == ["<|end|>"] * 3
    np.testing.assert_allclose(trajectory.return_, [0.75])
    np.testing.assert_allclose(stats.score, [1.0])
    np.testing.assert_allclose(stats.penalty, [-0.25])
    np.testing.assert_allclose(stats.valid, [2 / 3])
    assert stats.success.tolist() == [True]
    assert trajectory.policy_version.tolist() == [7]


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
def test_refilling_rows_changes_no_episode(renderer, rows):
    seeds = [3, 0, 2, 1, 3]
    replies = [[str(n) for n in range(seed % 4 + 1, 0, -1)] for seed in seeds]
    trajectory, stats = play(renderer, seeds, replies, rows)
    for row, seed in enumerate(seeds):
        alone, _ = play(renderer, [seed], [replies[row]], rows=1)
        np.testing.assert_array_equal(trajectory.tokens[row], alone.tokens[0])
        np.testing.assert_array_equal(trajectory.rewards[row], alone.rewards[0])
    np.testing.assert_array_equal(stats.turns, [4, 1, 3, 2, 4])
    assert stats.success.all()
    assert stats.sampled_tokens == 2 * 14
    assert stats.sampled_tokens + stats.read_tokens == trajectory.length.sum()


def test_group_members_share_start_and_id(renderer):
    trajectory, _ = play(
        renderer, [0, 2], [["1"]] * 2 + [["3", "2", "1"]] * 2, rows=4, group_size=2
    )
    assert trajectory.group_id.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(trajectory.tokens[0], trajectory.tokens[1])


def test_an_unclosed_reply_is_closed_by_the_observation(renderer):
    class Unclosed(ScriptedPolicy):
        def respond(self, memory, pending, starts, episodes, budgets):
            memory, replies = super().respond(memory, pending, starts, episodes, budgets)
            replies.counts[replies.counts > 0] -= 1  # the budget ran out before the end token
            return memory, replies

    policy = Unclosed(renderer, [["2", "1"]], max_new_tokens=3)
    trajectory, _ = collect(
        policy, CountdownEnv(1), renderer, Episodes.of([1]), max_tokens=64, max_new_tokens=3
    )
    text = renderer.tokenizer.decode(trajectory.tokens[0, : trajectory.length[0]])
    assert text.endswith("<|assistant|>2<|end|><|user|>1<|end|><|assistant|>1")
    assert trajectory.response_mask[0].sum() == 2


def test_a_full_row_ends_its_episode(renderer):
    # The first prompt takes 7 tokens, a reply 2, a further observation 4; a turn needs 4 + 3.
    trajectory, stats = play(renderer, [3], [["4", "3", "2", "1"]], rows=1, max_tokens=18)
    assert stats.cut.tolist() == [True]
    assert stats.turns.tolist() == [2]
    assert trajectory.length[0] == 7 + 2 + 4 + 2


def test_a_prompt_larger_than_a_row_is_refused(renderer):
    with pytest.raises(ValueError, match="max_tokens: 8 is too small"):
        play(renderer, [0], [["1"]], rows=1, max_tokens=8)


def test_a_script_longer_than_its_budget_is_refused(renderer):
    with pytest.raises(ValueError, match="max_new_tokens: 3"):
        play(renderer, [0], [["1111"]], rows=1)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_infos_are_those_of_the_last_turn(renderer, rows):
    seeds = [3, 0, 2, 1, 3]
    replies = [["no", *map(str, range(seed % 4 + 1, 0, -1))] for seed in seeds]
    _, stats = play(renderer, seeds, replies, rows)
    assert set(stats.infos) == {"turns_taken"}  # numbers alone, and none that is a field
    assert stats.infos["turns_taken"].tolist() == [seed % 4 + 2 for seed in seeds]
