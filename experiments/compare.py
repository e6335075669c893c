"""Compare arms over seeds: `python -m experiments.compare --task sokoban --seeds 5`.

Every run is a process of `python -m experiments.<task>`. The same command goes on where it was
stopped: finished runs are kept, a broken-off one resumes from its checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from experiments.command_line import experiment_named, split_flags
from experiments.comparison import read_runs, write_report
from experiments.experiment import Experiment
from experiments.options import Options, OptionsError, fingerprint
from experiments.progress import Console
from experiments.run_directory import has_checkpoints
from experiments.runner import parse_options
from experiments.studies import Variants, arms, study

__all__ = ["CompareOptions", "Job", "compare", "main", "make_jobs", "parse_command"]


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    """Run several arms over several seeds and write a report.

    Flags after a lone -- are given to every run: -- --iterations 200.
    """

    task: str = "sokoban"
    """Name of an experiment: sokoban, frozen_lake..."""
    arms: str = "on_policy,on_policy_epochs,uniform,fifo,per,freshper"
    """Arms, parted by commas."""
    study: str | None = None
    """Named study in place of --arms: tau, updates, objective... (experiments/studies.py)."""
    only: str | None = None
    """Variants of the study, parted by commas; by default all."""
    seeds: int = 5
    """Runs an arm."""
    first_seed: int = 0
    flags: Annotated[tuple[str, ...], tyro.conf.Suppress] = ()
    jobs: int | None = None
    """Runs at a time; by default one for every core, each held to a core of its own."""
    out: Path | None = None
    """Where runs and report go; by default runs/compare-<task>-<study or arms>."""
    report_only: bool = False
    """Write the report of the runs that are finished."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One run: a variant, a seed, its folder and its whole command."""

    variant: str
    seed: int
    folder: Path
    command: tuple[str, ...]
    options: Options

    @property
    def finished(self) -> bool:
        """Whether the run has written its results."""
        return (self.folder / "results.json").exists()


def compare(options: CompareOptions, console: Console | None = None) -> Path:
    """Run what is not finished, then write the report; return the folder of both.

    Raises:
      OptionsError: an option has a value that cannot work, or runs have failed, which are
        named with their logs.
    """
    console = console or Console()
    experiment, variants = experiment_named(options.task), _variants(options)
    out = options.out or Path("runs") / f"compare-{options.task}-{options.study or 'arms'}"
    jobs = make_jobs(options, experiment, variants, out)
    for job in jobs:
        _check_same(job)
    waiting = [job for job in jobs if not job.finished]
    failed: list[Job] = []
    if not options.report_only and waiting:
        console.say(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are finished: {out}")
        failed = _run_all(waiting, options.jobs or _cores(), console)
    runs = read_runs({job.folder: (job.variant, job.seed) for job in jobs if job.finished})
    if runs:
        write_report(out, options.task, runs, command=_command(options), console=console)
    if failed:
        logs = ", ".join(str(_log(job)) for job in failed)
        raise OptionsError(f"{len(failed)} runs failed, the others are kept; see {logs}")
    if not runs:
        raise OptionsError(f"--out: there is no finished run in {out}")
    return out


def make_jobs(
    options: CompareOptions, experiment: Experiment, variants: Variants, out: Path
) -> list[Job]:
    """Return one job a variant and seed; seeds vary slowest, so that arms grow alike.

    Raises:
      OptionsError: a run could not be made of its flags.
    """
    jobs = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name, flags in variants.items():
            variant = f"{options.task}-{name}".replace(" ", "-").replace(",", "")
            folder = out / variant / f"seed{seed}"
            told = (*options.flags, *flags, "--seed", str(seed), "--out", str(folder))
            options_of_run = parse_options(experiment, told)  # what cannot work is told now
            command = (sys.executable, "-m", f"experiments.{options.task}", *told)
            jobs.append(Job(name, seed, folder, command, options_of_run))
    return jobs


def _check_same(job: Job) -> None:
    """Refuse a folder that holds a run of other flags.

    Raises:
      OptionsError: names the folder and what differs.
    """
    try:
        found = json.loads((job.folder / "config.json").read_text())
    except (OSError, ValueError):
        return  # there is no run yet
    wanted = fingerprint(job.options)
    differ = sorted(name for name in wanted if not _agree(wanted[name], found.get(name)))
    if differ:
        raise OptionsError(
            f"--out: {job.folder} holds a run of other settings ({', '.join(differ)}); give "
            "another --out, or remove it"
        )


def _agree(wanted: object, found: object) -> bool:
    """Say whether settings agree; one that is left open agrees with whatever was settled."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_agree(value, found.get(name)) for name, value in wanted.items())
    return wanted is None or wanted == found


def _run_all(jobs: Sequence[Job], at_once: int, console: Console) -> list[Job]:
    """Run jobs, so many at a time; return those that failed. Ctrl-C ends the running ones."""
    cores = _cores_of(at_once)
    running: set[subprocess.Popen[bytes]] = set()
    lock = threading.Lock()
    done = 0

    def work(job: Job) -> bool:
        nonlocal done
        with lock:
            mine = cores.pop() if cores else None
        _log(job).parent.mkdir(parents=True, exist_ok=True)
        with _log(job).open("ab") as log:
            resume = ("--resume",) if has_checkpoints(job.folder) else ()
            process = subprocess.Popen(
                (*job.command, *resume), stdout=log, stderr=subprocess.STDOUT, env=_environment()
            )
            if mine is not None:
                os.sched_setaffinity(process.pid, {mine})
            with lock:
                running.add(process)
            code = process.wait()
        with lock:
            running.discard(process)
            if mine is not None:
                cores.append(mine)
            done += 1
            outcome = "finished" if code == 0 else f"failed, see {_log(job)}"
            console.say(f"{done}/{len(jobs)}  {job.variant}, seed {job.seed}: {outcome}")
        return code == 0

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(work, job): job for job in jobs}
        try:
            return [
                futures[one] for one in concurrent.futures.as_completed(futures) if not one.result()
            ]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cores_of(at_once: int) -> list[int]:
    """Return a core for each of so many runs; none where they are not to be held to one."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    return cores[:at_once] if 1 < at_once <= len(cores) else []


def _environment() -> dict[str, str]:
    """Return the environment of a run: Python finds the project where this process found it."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _log(job: Job) -> Path:
    return job.folder.with_suffix(".log")


def _variants(options: CompareOptions) -> Variants:
    for name in ("seeds", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise OptionsError(f"--{name}: got {value}, expected an integer of at least 1")
    if options.study is None:
        if options.only is not None:
            raise OptionsError(f"--only: got {options.only!r}, expected a --study to take it from")
        return arms(options.arms)
    return study(options.study, options.only)


def _command(options: CompareOptions) -> str:
    """Return the command that makes the same runs."""
    words = ["python", "-m", "experiments.compare", "--task", options.task]
    words += ["--study", options.study] if options.study else ["--arms", options.arms]
    words += ["--only", options.only] if options.only else []
    words += ["--seeds", str(options.seeds)]
    if options.first_seed:
        words += ["--first-seed", str(options.first_seed)]
    if options.flags:
        words += ["--", *options.flags]
    return shlex.join(words)


def parse_command(arguments: Sequence[str]) -> CompareOptions:
    """Return the options of a command line; what follows a lone `--` are flags of every run."""
    words, flags = split_flags(arguments)
    options = tyro.cli(CompareOptions, prog="python -m experiments.compare", args=words)
    return dataclasses.replace(options, flags=tuple(flags))


def main() -> None:
    """Compare what the command line names."""
    try:
        compare(parse_command(sys.argv[1:]))
    except OptionsError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")


if __name__ == "__main__":
    main()
