import numpy as np
import pytest

from experiments.plots import plot_ages, plot_learning
from experiments.report import render_episodes
from freshper_jax.rollout import (
    Episodes,
    ScriptedPolicy,
    collect,
    make_chat_renderer,
    make_word_tokenizer,
)
from freshper_jax.training import AGE_EDGES
from tests.rollout.counting import CountdownEnv


def test_rendered_episodes_mark_the_policys_own_words(tmp_path):
    renderer = make_chat_renderer(make_word_tokenizer(["Count.", *"0123456789"]))
    policy = ScriptedPolicy(renderer, [["2", "1"]], max_new_tokens=3)
    trajectory, stats = collect(
        policy, CountdownEnv(1), renderer, Episodes.of([1]), max_tokens=32, max_new_tokens=3
    )
    render_episodes(tmp_path / "episodes.md", renderer, trajectory, stats, 4)
    text = (tmp_path / "episodes.md").read_text()
    assert "## Episode 1: solved, score 2.0, 2 turns" in text
    assert "Count.<|end|><|user|>2<|end|><|assistant|>«2<|end|>»<|user|>1<|end|>" in text


@pytest.mark.parametrize("replays", [True, False])
def test_pictures_are_drawn_with_and_without_replay(replays, tmp_path):
    bins = len(AGE_EDGES)
    line = {"rollout/success": 0.3, "rollout/score": 1.0, "fresh/ess_fraction": 1.0}
    line |= {"fresh/clip_fraction": 0.0}
    if replays:
        ages = {f"age/{name}": list(np.linspace(0, 1, bins)) for name in ("count", "kl", "ess")}
        line |= ages | {"replay/ess_fraction": 0.5, "replay/clip_fraction": 0.1}
    held_out = {"success": 0.4, "success_low": 0.3, "success_high": 0.5, "score": 2.0}
    first = {"iteration": 0} | {f"held_out/{name}": value for name, value in held_out.items()}
    history = [first, *({"iteration": i, **line} for i in range(1, 6))]
    plot_learning(
        history, tmp_path / "curve.png", title="t", episodes=8, references={"random": 0.1}
    )
    plot_ages(history, tmp_path / "ages.png", title="t", tau=30.0 if replays else None)
    for name in ("curve.png", "ages.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
