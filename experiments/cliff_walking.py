"""Train an agent to walk beside a cliff: `python -m experiments.cliff_walking`."""

from __future__ import annotations

from envs.cliff_walking import CLIFF_WALKING
from experiments.experiment import Experiment
from experiments.options import Options
from experiments.progress import Console
from experiments.task import Task
from experiments.walks import WalkOptions, make_walk_task

__all__ = ["EXPERIMENT", "main"]


def _make_task(options: Options[WalkOptions], console: Console) -> Task:
    del console  # maps are drawn in a moment
    return make_walk_task("cliff_walking", CLIFF_WALKING, options)


EXPERIMENT = Experiment(
    "cliff_walking",
    _make_task,
    env=WalkOptions,
    defaults={
        "all": {"task": "random"},
        # Bad walks are the long ones and have the largest returns: by token and by |return| they
        # would be most of what is learnt from, and pushing down teaches little. So each episode
        # counts once, whatever it cost, and replay stays close to the policy.
        "tiny": {
            "iterations": 120,
            "learning": {
                "learning_rate": 6e-4,
                "discount": 0.9,
                "aggregation": "seq-mean-token-mean",
            },
            "replay": {"priority": "constant", "tau": 3.0},
            "warm_start": {"target": 0.5, "check_every": 10},
        },
    },
)


def main() -> None:
    """Run the experiment that the command line describes."""
    from experiments.runner import run_from_command_line

    run_from_command_line(EXPERIMENT)


if __name__ == "__main__":
    main()
