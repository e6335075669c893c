"""Strict settings for every test; they take effect before JAX starts its backend."""

import gc
import os
import tempfile
from pathlib import Path

import chex
import hypothesis
import jax
import pytest

_CACHE_NAME = f"freshper-jax-test-compilation-cache-{os.getuid()}"
_COMPILATION_CACHE = Path(tempfile.gettempdir()) / _CACHE_NAME

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(_COMPILATION_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)

hypothesis.settings.register_profile("freshper", deadline=None, derandomize=True)
hypothesis.settings.load_profile("freshper")


@pytest.fixture
def get_key(request):
    """Hands out a fresh PRNG key at each call, seeded by the name of the test."""
    seed = sum(ord(letter) * (place + 1) for place, letter in enumerate(request.node.name))
    state = {"key": jax.random.key(seed)}

    def next_key() -> jax.Array:
        state["key"], key = jax.random.split(state["key"])
        return key

    return next_key


@pytest.fixture(autouse=True)
def _count_traces_anew():
    """chex counts the traces of a function by its name, whichever test asks."""
    chex.clear_trace_counter()


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Lets go of a module's compiled programs.

    Each takes several memory maps, of which the system gives a process 65,530: where they run
    out, the compiler crashes.
    """
    yield
    jax.clear_caches()
    gc.collect()
