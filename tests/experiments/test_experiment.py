import dataclasses
import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import rich.console

from experiments.experiment import Experiment
from experiments.options import OptionsError, check_options, fingerprint
from experiments.report import make_table, summarise
from experiments.runner import parse_options
from freshper_jax.rollout import EpisodeStats


@dataclasses.dataclass(frozen=True)
class LakeOptions:
    """Ice."""

    slippery: bool = False
    """Whether the ice is slippery."""
    kind: Literal["small", "large"] = "small"
    """Which lake."""
    maps: Path | None = None
    """Where the maps are."""


LAKE = Experiment(
    "lake",
    lambda options, console: None,
    env=LakeOptions,
    defaults={
        "all": {"task": "round", "replay": {"tau": 3.0}},
        "tiny": {"iterations": 7},
        "pretrained": {"env": {"slippery": True}, "iterations": 9},
        "smollm2-135m": {"iterations": 11},
    },
)


def test_a_task_brings_flags_and_defaults_of_its_own():
    options = parse_options(LAKE, ["--env.kind=large", "--env.maps=here"])
    assert options.env == LakeOptions(kind="large", maps=Path("here"))
    assert (options.task, options.replay.tau, options.iterations) == ("round", 3.0, 7)
    assert options.out == Path("runs/lake-round-freshper-seed0")
    assert json.loads(json.dumps(fingerprint(options)))["env"]["maps"] == "here"


def test_presets_come_after_what_all_share_and_arms_after_both():
    small = parse_options(LAKE, ["--preset=smollm2-135m"])
    assert (small.iterations, small.env.slippery, small.task) == (11, True, "round")
    assert small.max_new_tokens == 24  # the preset's own default stays
    assert parse_options(LAKE, ["--preset=qwen2.5-7b"]).iterations == 9
    assert parse_options(LAKE, ["--arm=per"]).replay.tau is None
    assert parse_options(LAKE, ["--iterations=5", "--task=oval"]).iterations == 5


def test_values_of_a_tasks_own_flags_are_checked(capsys):
    options = parse_options(LAKE, [])
    bad = dataclasses.replace(options, env=LakeOptions(kind="huge"))
    with pytest.raises(OptionsError, match=r"--env\.kind: got huge, expected one of small, large"):
        check_options(bad)
    with pytest.raises(SystemExit):
        parse_options(LAKE, ["--env.depth=3"])
    assert "env.depth" in "".join(capsys.readouterr())


def test_metrics_of_a_task_are_averaged_over_episodes():
    stats = EpisodeStats(
        *(np.array([1.0, 0.0, 0.0, 1.0]) for _ in range(7)),
        sampled_tokens=4,
        read_tokens=4,
        infos={"lenient": np.array([True, True, True, False]), "looks": np.array([1, 2, 3, 4])},
    )
    row = summarise(stats, ("lenient", "looks"))
    assert row["lenient"].value == 0.75
    assert 0.75 < row["lenient"].high < 1
    assert row["looks"].value == 2.5
    console = rich.console.Console(width=120, record=True)
    console.print(make_table("t", {"x": row}, (), ("lenient", "looks")))
    assert "2.500" in console.export_text()
