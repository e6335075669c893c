import json
import shutil
import sys

import numpy as np
import pytest
import rich.console

from experiments.compare import CompareOptions, compare, make_jobs, parse_command
from experiments.comparison import area_under_curve, read_runs, write_report
from experiments.drift_profile import CENTRES, DriftProfile, drift_profile, growth
from experiments.options import OptionsError, fingerprint
from experiments.progress import Console
from experiments.runner import parse_options
from experiments.sokoban import EXPERIMENT
from experiments.studies import STUDIES, arms, study
from freshper_jax.training import AGE_EDGES
from tests.experiments.small import FLAGS


def fake_run(folder, final, *, arm="freshper", tau=10.0, power=0.5):
    """A finished run whose every number is known: success rises linearly to `final`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"arm": arm, "episodes": 8, "replay": {"tau": tau}})
    )
    entry = {"success": [final, 0.0, 1.0], "score": [1.0, 0.0, 2.0]}
    (folder / "results.json").write_text(
        json.dumps({f"{arm}, sampled": entry, f"{arm}, greedy": entry})
    )
    lines = []
    for iteration in range(5):
        line = {"iteration": iteration, "time/fresh": 1.0, "time/replay": 1.0}
        line |= {"held_out/success": final * iteration / 4, "held_out/score": 0.0}
        line |= {"speed/trained_tokens": 50.0 * (iteration > 0)}
        line |= {
            "age/count": [30.0] * len(AGE_EDGES),
            "age/kl": (0.1 * CENTRES**power).tolist(),
            "age/ess": np.exp(-0.1 * CENTRES**power).tolist(),
        }
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_what_is_read_of_a_run(tmp_path):
    (run,) = read_runs({fake_run(tmp_path / "a", 0.8): ("ours", 3)})
    assert (run.variant, run.seed, run.final) == ("ours", 3, 0.8)
    assert run.episodes.tolist() == [0, 8, 16, 24, 32]
    assert run.tokens.tolist() == [0, 100, 200, 300, 400]
    assert area_under_curve(run) == pytest.approx(0.4)  # of a straight line from 0 to 0.8
    assert run.drift.tau == 10.0


def test_the_report_says_what_the_runs_say(tmp_path):
    folders = {}
    for arm, finals in (("on_policy", (0.2, 0.3, 0.4, 0.9)), ("freshper", (0.5, 0.6, 0.6, 0.7))):
        for seed, final in enumerate(finals):
            folders[fake_run(tmp_path / arm / str(seed), final, arm=arm)] = (arm, seed)
    with (tmp_path / "printed").open("w") as file:
        console = Console(rich.console.Console(file=file))
        write_report(tmp_path, "toy", read_runs(folders), command="python -m x", console=console)
    text = (tmp_path / "report.md").read_text()
    assert "toy: 2 variants, 4 seeds each" in text
    # Interquartile means: of 0.3 and 0.4, and of 0.6 and 0.6.
    assert "| on_policy | 4 | 0.350 [" in text
    assert "| freshper | 4 | 0.600 [" in text
    assert "| 1.71 |" in text
    # freshper wins all pairs but those with 0.9: 12 of 16.
    assert "| freshper | 0.75 [" in text
    assert "0.50 (0.50 to 0.50)" in text  # the power of the drift
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert "0.350 [" in page
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 8
    assert (
        (tmp_path / "runs.csv").read_text().splitlines()[-1].endswith(",3,0.7000,0.7000,0.3500,10")
    )
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 1 + 8 * 5
    drift = (tmp_path / "drift.csv").read_text().splitlines()
    assert len(drift) == 1 + 8 * len(AGE_EDGES)
    # The second half of five lines is three, each of 30 rows.
    (row,) = [line for line in drift if line.startswith("freshper,3,128-255,")]
    kl = 0.1 * CENTRES[8] ** 0.5
    assert row == f"freshper,3,128-255,90,{kl:.4g},{np.exp(-kl):.4f}"


@pytest.mark.parametrize("power", [0.4, 1.0, 2.0])
def test_the_fitted_law_is_the_one_that_made_the_profile(power):
    kl = 0.05 * CENTRES**power
    law = growth(DriftProfile(np.full(len(CENTRES), 100.0), kl, np.exp(-kl), None))
    assert law.power == pytest.approx(power)
    assert law.at_one == pytest.approx(0.05)
    half = (np.log(2) / 0.05) ** (1 / power)
    assert abs(np.log2(law.half_ess_age / half)) < 0.35  # interpolated within an octave
    if power == 1.0:
        assert law.tau_of_rate == pytest.approx(1 / 0.05)


def test_too_little_drift_has_no_law():
    nothing = DriftProfile(np.zeros(13), np.zeros(13), np.zeros(13), None)
    assert np.isnan(growth(nothing).power)
    assert drift_profile([{"iteration": 0}]) is None
    kl = np.full(13, 0.01)
    assert growth(DriftProfile(np.full(13, 50.0), kl, np.ones(13), None)).half_ess_age == np.inf


def test_the_ess_of_few_rows_is_not_believed():
    few, many = [3.0] * 13, [8.0] * 13
    lines = [{"age/count": few, "age/kl": [0.2] * 13, "age/ess": [1.0] * 13}]
    assert np.isnan(drift_profile(lines).ess).all()
    lines += 2 * [{"age/count": many, "age/kl": [0.4] * 13, "age/ess": [0.6] * 13}]
    np.testing.assert_allclose(drift_profile(lines).ess, 0.6)
    lines = 2 * lines[:1] + lines[1:2] + lines[:1]  # the second half has 8 rows, then 3
    np.testing.assert_allclose(drift_profile(lines).ess, 0.6)
    np.testing.assert_allclose(drift_profile(lines).kl, (8 * 0.4 + 3 * 0.2) / 11)
    assert growth(drift_profile(40 * lines[:1])).half_ess_age == np.inf


def test_jobs_are_every_variant_with_every_seed(tmp_path):
    options = CompareOptions(seeds=2, first_seed=5, flags=("--iterations", "3"))
    jobs = make_jobs(options, EXPERIMENT, arms("per, fifo"), tmp_path)
    assert [(job.variant, job.seed) for job in jobs] == [
        ("per", 5),
        ("fifo", 5),
        ("per", 6),
        ("fifo", 6),
    ]
    assert jobs[0].command[:3] == (sys.executable, "-m", "experiments.sokoban")
    assert jobs[0].command[3:7] == ("--iterations", "3", "--arm", "per")
    assert len({job.folder for job in jobs}) == 4


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_run(name, tmp_path):
    jobs = make_jobs(CompareOptions(seeds=1), EXPERIMENT, study(name), tmp_path)
    assert len({job.folder for job in jobs}) == len(STUDIES[name])
    assert not [variant for variant in STUDIES[name] if "," in variant]  # --only parts by commas


def test_variants_of_a_study_can_be_chosen(tmp_path):
    options = parse_command(["--study", "tau", "--only", "tau 3, none", "--seeds", "1"])
    jobs = make_jobs(options, EXPERIMENT, study("tau", options.only), tmp_path)
    assert [job.variant for job in jobs] == ["tau 3", "none"]
    assert jobs[0].options.replay.tau == 3.0
    assert jobs[1].options.arm == "per"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "nothing"}, "--task: got 'nothing', expected the name of an experiment"),
        ({"task": "options"}, "--task: got 'options', which is a module but no experiment"),
        ({"arms": "per,best"}, "--arms: got 'best', expected names among freshper"),
        ({"arms": "per,per"}, "--arms: got 'per,per', expected different names"),
        ({"study": "tau", "only": "tau 4"}, "--only: got 'tau 4', expected names among tau 1,"),
        ({"only": "tau 3"}, "--only: got 'tau 3', expected a --study to take it from"),
        ({"study": "all"}, "--study: got 'all', expected one of arms, tau"),
        ({"seeds": 0}, "--seeds: got 0"),
        ({"jobs": 0}, "--jobs: got 0"),
        ({"flags": ("--iterations", "0")}, "--iterations: got 0"),
        ({"report_only": True}, "--out: there is no finished run"),
    ],
)
def test_what_cannot_work_is_told_before_anything_runs(options, message, tmp_path):
    with pytest.raises(OptionsError) as raised:
        compare(CompareOptions(out=tmp_path, **options))
    assert message in str(raised.value)


def test_flags_of_every_run_follow_a_lone_dash():
    options = parse_command(["--task", "sokoban", "--seeds", "2", "--", "--iterations", "3"])
    assert (options.seeds, options.flags) == (2, ("--iterations", "3"))
    assert parse_command([]).flags == ()


def test_a_run_of_other_flags_is_not_taken_for_this_one(tmp_path):
    options = CompareOptions(arms="per", seeds=1, out=tmp_path, report_only=True)
    folder = tmp_path / "sokoban-per" / "seed0"
    fake_run(folder, 0.5)
    told = ["--arm=per", "--seed=0", f"--out={folder}"]
    config = fingerprint(parse_options(EXPERIMENT, told)) | {"max_tokens": 208}
    (folder / "config.json").write_text(json.dumps(config | {"arm": "freshper"}))
    with pytest.raises(OptionsError, match=r"holds a run of other settings \(arm\); give another"):
        compare(options)
    (folder / "config.json").write_text(json.dumps(config | {"iterations": 7}))
    with pytest.raises(OptionsError, match=r"other settings \(iterations\)"):
        compare(options)
    # What is left open, like the tokens of a row, agrees with what the run has settled on.
    (folder / "config.json").write_text(json.dumps(config))
    results = (folder / "results.json").read_text().replace("freshper", "per")
    (folder / "results.json").write_text(results)
    assert compare(options) == tmp_path


@pytest.mark.slow
def test_a_comparison_resumes_run_by_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FRESHPER_CACHE", str(tmp_path / "cache"))
    flags = [flag for flag in FLAGS if not flag.startswith(("--iterations", "--evaluation.every"))]
    flags += ["--iterations=1", "--evaluation.every=1"]
    options = CompareOptions(
        arms="on_policy,freshper", seeds=1, flags=tuple(flags), out=tmp_path / "out"
    )

    def run():
        with (tmp_path / "printed").open("w+") as file:
            compare(options, Console(rich.console.Console(file=file, width=200)))
            file.seek(0)
            return file.read()

    assert "2/2" in run()
    kept = tmp_path / "out" / "sokoban-on_policy" / "seed0" / "metrics.jsonl"
    before = kept.read_bytes()
    (tmp_path / "out" / "sokoban-freshper" / "seed0" / "results.json").unlink()
    printed = run()
    assert "1 of 2 runs are finished" in printed
    assert "1/1  freshper, seed 0: finished" in printed
    assert "Resuming" in (tmp_path / "out" / "sokoban-freshper" / "seed0.log").read_text()
    assert kept.read_bytes() == before
    assert "| freshper | 1 |" in (tmp_path / "out" / "report.md").read_text()

    # A run that fails is named with its log; those that are finished stay and are reported.
    shutil.rmtree(tmp_path / "out" / "sokoban-freshper" / "seed0")
    (tmp_path / "out" / "sokoban-freshper" / "seed0").write_text("in the way")
    with pytest.raises(OptionsError, match=r"1 runs failed, the others are kept; see .*seed0\.log"):
        run()
    assert "on_policy" in (tmp_path / "out" / "report.md").read_text()
