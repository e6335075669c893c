"""Reply with the larger of two numbers: `python -m examples.larger`."""

from dataclasses import make_dataclass

import numpy as np

from envs import Game, Turn
from experiments.experiment import Experiment
from experiments.game_task import make_game_task
from experiments.runner import run_from_command_line

PAIRS = np.random.default_rng(0).permutation([(a, b) for a in range(100) for b in range(100)])
State = make_dataclass("State", ["pairs", "ended", "won"], frozen=True)  # [B, 2], [B], [B]


def make_game(pairs):
    def play(state, replies, active, left):
        right = np.array([r == str(max(p)) for r, p in zip(replies, state.pairs, strict=True)])
        ok = np.array([reply.isdecimal() for reply in replies])
        state = State(state.pairs, state.ended | active, state.won | active & right)
        return state, Turn(right * 1.0, ok, ok, ok | True)

    return Game(
        starts=len(pairs), horizon=1, system_prompt="Reply with the larger number.",
        begin=lambda starts, seeds: State(pairs[starts], *np.zeros((2, len(starts)), bool)),
        play=play, show=lambda state, counters, left: [f"{a} {b}" for a, b in state.pairs],
        terminated=lambda state: state.ended, success=lambda state: state.won, format_penalty=-0.1,
    )  # fmt: skip


def make_task(options, console):
    train, held_out = make_game(PAIRS[:8_000]), make_game(PAIRS[8_000:])
    shown = {"words": "0123456789 ", "solve": lambda start: [str(max(PAIRS[start]))]}
    return make_game_task("larger", train, held_out, **shown)


EXPERIMENT = Experiment("larger", make_task, defaults={"tiny": {"iterations": 100}})
if __name__ == "__main__":
    run_from_command_line(EXPERIMENT)
