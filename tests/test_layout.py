"""Imports go one way, and the heavy libraries stay where they belong."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import envs
from freshper_jax import rollout

PROJECT = Path(__file__).parents[1]
LIGHT = {"jax", "numpy", "chex", "freshper_jax"} | set(sys.stdlib_module_names)

# What each part may import of the project.
ALLOWED = {
    "freshper_jax/replay": set(),
    "freshper_jax/objectives": set(),
    "freshper_jax/models": set(),
    "freshper_jax/weights": {"freshper_jax.models"},
    "freshper_jax/generate": {"freshper_jax.models"},
    "freshper_jax/rollout": {"freshper_jax.models", "freshper_jax.generate"},
    "freshper_jax/training": {
        "freshper_jax.replay",
        "freshper_jax.objectives",
        "freshper_jax.models",
        "freshper_jax.generate",
        "freshper_jax.rollout",
    },
    "envs": set(),
    "experiments": {"freshper_jax", "envs"},
    "benchmarks": {"freshper_jax", "envs", "experiments"},
    "examples": {"freshper_jax", "envs", "experiments"},
}
# Libraries that a part must do without.
BARRED = {
    "freshper_jax/replay": {"flax", "optax", "orbax", "transformers", "tokenizers"},
    "freshper_jax/objectives": {"flax", "optax", "orbax", "transformers", "tokenizers"},
    "envs": {"jax", "flax", "torch", "transformers"},
    "freshper_jax": {"torch", "gymnasium", "tyro", "rich", "matplotlib", "scipy", "tensorboardX"},
}


def imports(folder):
    for path in (PROJECT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            for name in names:
                yield path.relative_to(PROJECT), name


def inside(name, package):
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("part", ALLOWED)
def test_parts_import_in_one_direction(part):
    own = part.replace("/", ".")
    project = ("freshper_jax", "envs", "experiments", "benchmarks", "tests")
    for path, name in imports(part):
        if not any(inside(name, top) for top in project) or inside(name, own):
            continue
        allowed = any(inside(name, package) for package in ALLOWED[part])
        assert allowed, f"{path} imports {name}"


def test_replay_needs_jax_and_chex_only():
    for path, name in imports("freshper_jax/replay"):
        assert name.split(".")[0] in LIGHT, f"{path}: {name}"


def test_replay_loads_no_heavy_library():
    # What it imports may import more in turn, so ask a fresh interpreter.
    code = "import sys; from freshper_jax import replay; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, check=True, text=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert {"freshper_jax", "jax", "chex"} <= loaded
    heavy = {"flax", "optax", "orbax", "transformers", "tokenizers", "torch"}
    assert not loaded & (heavy | {"envs", "experiments", "benchmarks"})


def test_environments_and_rollouts_agree_on_the_protocol():
    theirs, ours = envs.TextVectorEnv, rollout.TextVectorEnv
    for method in ("reset", "step"):
        parameters = [
            [(p.name, p.kind) for p in inspect.signature(getattr(one, method)).parameters.values()]
            for one in (theirs, ours)
        ]
        assert parameters[0] == parameters[1]
    assert isinstance(theirs.system_prompt, property)
    assert isinstance(ours.system_prompt, property)


@pytest.mark.parametrize("part", BARRED)
def test_parts_do_without_heavy_libraries(part):
    for path, name in imports(part):
        assert not any(inside(name, library) for library in BARRED[part]), f"{path}: {name}"
