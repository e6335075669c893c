"""What the documentation tells people to type works as it stands there."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from experiments import references
from experiments.compare import make_jobs, parse_command
from experiments.runner import parse_options
from experiments.studies import arms, study

PROJECT = Path(__file__).parents[1]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def blocks(language):
    for page in PAGES:
        found = re.findall(
            rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL
        )
        for number, block in enumerate(found):
            yield pytest.param(block, id=f"{page.relative_to(PROJECT)}-{number}")


@pytest.mark.parametrize("block", list(blocks("python")))
def test_python_blocks_run(block, capsys):
    exec(compile(block, "block", "exec"), {"__name__": "block"})
    assert capsys.readouterr().out


def check_experiment(module, flags):
    if module == "experiments.references":
        assert set(flags) <= set(references.PRESETS)
        return
    if module != "experiments.compare":
        parse_options(importlib.import_module(module).EXPERIMENT, flags)
        return
    options = parse_command(flags)
    experiment = importlib.import_module(f"experiments.{options.task}").EXPERIMENT
    variants = study(options.study) if options.study else arms(options.arms)
    assert make_jobs(options, experiment, variants, Path("out"))


@pytest.mark.parametrize("block", list(blocks("bash")))
def test_commands_name_what_exists(block):
    for line in block.strip().splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["python", "-m"] and words[2].startswith("experiments."):
            check_experiment(words[2], words[3:])
        for requirements in re.findall(r"-r (\S+)", line):
            assert (PROJECT / requirements).exists()
        for module in re.findall(r"python -m ((?:experiments|benchmarks)\.\w+)", line):
            assert (PROJECT / f"{module.replace('.', '/')}.py").exists()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target
