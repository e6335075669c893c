"""Reply with the larger of two numbers: `python -m examples.larger`."""

from dataclasses import make_dataclass

import numpy as np

from envs import Game, Turn
from experiments.experiment import Experiment
from experiments.game_task import make_game_task
from experiments.runner import run_from_command_line

PAIRS = np.random.default_rng(0).permutation([(a, b) for a in range(100) for b in range(100)])
State = make_dataclass("State", ["pairs", "won"], frozen=True)  # [B, 2]; [B], -1 to begin with


def make_game(pairs):
    def play(state, replies, active, left):
        won = np.array([r == str(max(p)) for r, p in zip(replies, state.pairs, strict=True)])
        ok = np.array([reply.isdecimal() for reply in replies])
        return State(state.pairs, np.where(active, won, state.won)), Turn(won, ok, ok, ok | True)

    return Game(
        starts=len(pairs), horizon=1, system_prompt="Write the larger number.", format_penalty=-0.1,
        begin=lambda starts, seeds: State(pairs[starts], np.full(len(starts), -1)),
        play=play, show=lambda state, counters, left: [f"{a} {b}" for a, b in state.pairs],
        terminated=lambda state: state.won >= 0, success=lambda state: state.won == 1,
    )  # fmt: skip


def make_task(options, console):
    train, held_out = make_game(PAIRS[:8_000]), make_game(PAIRS[8_000:])
    return make_game_task(
        "larger", train, held_out, words="0123456789 ", solve=lambda n: [str(max(PAIRS[n]))]
    )


EXPERIMENT = Experiment("larger", make_task, defaults={"tiny": {"iterations": 100}})
if __name__ == "__main__":
    run_from_command_line(EXPERIMENT)
