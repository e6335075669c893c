"""The replay buffers that `benchmarks.replay` compares, each behind the same few calls."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from freshper_jax import replay

__all__ = [
    "ALPHA",
    "BETA",
    "PEERS",
    "TAU",
    "Buffer",
    "Call",
    "Freshper",
    "Rows",
    "missing",
    "packed_options",
]

ALPHA, BETA, TAU = 0.6, 0.4, 100.0
Rows = dict[str, np.ndarray]
Call = Callable[[], object]


class Buffer(Protocol):
    """One implementation, with its state.

    Each method but `nbytes` does what needs no clock (copies to the device, keys) and returns
    the call to be timed, which ends when its results are there. The calls of one buffer run in
    the order in which they were made.
    """

    def add(self, rows: Rows, priorities: np.ndarray, /) -> Call:
        """Prepare to append rows, with these priorities where the buffer takes any here."""
        ...

    def sample(self, count: int, seed: int, /) -> Call:
        """Prepare to draw rows and their importance weights."""
        ...

    def update(self, slots: np.ndarray, priorities: np.ndarray, /) -> Call:
        """Prepare to give the rows in these slots new priorities."""
        ...

    def nbytes(self) -> int | None:
        """Count the bytes of the state; None where the library does not tell."""
        ...


def packed_options(capacity: int, tokens: int | None) -> dict[str, Any]:
    """Choose packed storage, all leaves ragged, with room for rows of a third of the longest."""
    if tokens is None:
        return {}
    return {"storage": "packed", "token_capacity": capacity * tokens // 3 + 1, "ragged": True}


class Freshper:
    """This project's buffer; its clock moves at every add and at every draw.

    With `tokens`, the length of the longest row, rows are packed, and are a third as long on
    average. With `inside_jit` its functions are called in jitted ones of the caller's.
    """

    def __init__(
        self,
        example: Rows,
        capacity: int,
        tokens: int | None = None,
        *,
        inside_jit: bool = False,
    ) -> None:
        self._tokens = tokens
        self._buffer = replay.make_buffer(
            capacity=capacity, alpha=ALPHA, beta=BETA, tau=TAU, **packed_options(capacity, tokens)
        )
        if inside_jit:
            self._buffer = dataclasses.replace(
                self._buffer,
                add=jax.jit(self._buffer.add, donate_argnums=0),
                sample=jax.jit(self._buffer.sample, static_argnums=2),
                update=jax.jit(self._buffer.update, donate_argnums=0),
            )
        self._state = self._buffer.init(example)
        self._clock = 0
        self._generations = np.full(capacity, -1, np.int32)
        self._added: list[replay.Handles] = []

    def add(self, rows: Rows, priorities: np.ndarray, /) -> Call:
        """Prepare an add at the next clock."""
        batch, base = _on_device((rows, priorities))
        self._clock += 1
        clock = self._clock
        lengths = None
        if self._tokens is not None:
            mixed = np.arange(len(priorities)) * 37 % (2 * self._tokens // 3) + 1
            lengths = _on_device(mixed.astype(np.int32))

        def call() -> None:
            self._state, handles = jax.block_until_ready(
                self._buffer.add(self._state, batch, base, clock, lengths=lengths)
            )
            self._added.append(handles)

        return call

    def sample(self, count: int, seed: int, /, *, moved: bool = True) -> Call:
        """Prepare a draw, at the next clock or, if not `moved`, at that of the last one."""
        key = _on_device(jax.random.key(seed))
        self._clock += moved
        clock = self._clock
        return lambda: jax.block_until_ready(self._buffer.sample(self._state, key, count, clock))

    def update(self, slots: np.ndarray, priorities: np.ndarray, /) -> Call:
        """Prepare an update by the handles of the rows that are in these slots now."""
        for handles in self._added:
            self._generations[np.asarray(handles.index)] = np.asarray(handles.generation)
        self._added.clear()
        index, generations, base = _on_device(
            (slots.astype(np.int32), self._generations[slots], priorities)
        )
        handles = replay.Handles(index=index, generation=generations)

        def call() -> None:
            self._state = jax.block_until_ready(self._buffer.update(self._state, handles, base))

        return call

    def nbytes(self) -> int:
        """Count all leaves of the state."""
        return replay.state_nbytes(self._state)


class Flashbax:
    """flashbax's prioritised item buffer, compiled and donated, which it leaves to its users.

    What had to be put around version 0.1.3: one buffer object for each batch size, on one
    state, since the size is fixed when it is made; importance weights, of which it returns
    only the probabilities, inside the same compiled call; and an update after each add to
    give new rows a priority, since `add` takes none (it gives them the largest one so far,
    rounded down to an integer). The last is done to fill the buffer, not where adds are timed.
    """

    needs = ("flashbax",)

    def __init__(self, example: Rows, capacity: int) -> None:
        self._make = importlib.import_module("flashbax").make_prioritised_item_buffer
        self._capacity = capacity
        self._samples: dict[int, Callable[..., object]] = {}
        buffer = self._with_batch(1)
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._update = jax.jit(buffer.set_priorities, donate_argnums=0)
        self._state = buffer.init(_on_device(example))

    def _with_batch(self, count: int) -> Any:
        return self._make(
            max_length=self._capacity,
            min_length=1,
            sample_batch_size=count,
            add_batches=True,
            priority_exponent=ALPHA,
            device=jax.default_backend(),
        )

    def add(self, rows: Rows, _priorities: np.ndarray, /) -> Call:
        """Prepare an add; the rows get a priority of flashbax's choice."""
        batch = _on_device(rows)

        def call() -> None:
            self._state = jax.block_until_ready(self._add(self._state, batch))

        return call

    def sample(self, count: int, seed: int, /) -> Call:
        """Prepare a draw by the stored priorities, with weights."""
        if count not in self._samples:
            self._samples[count] = jax.jit(self._weighted(count))
        draw, key = self._samples[count], _on_device(jax.random.key(seed))
        return lambda: jax.block_until_ready(draw(self._state, key))

    def _weighted(self, count: int) -> Callable[..., object]:
        buffer, capacity = self._with_batch(count), self._capacity

        def draw(state: Any, key: jax.Array) -> object:
            sample = buffer.sample(state, key)
            weights = (capacity * sample.probabilities) ** -BETA
            return sample, weights / jnp.max(weights)

        return draw

    def update(self, slots: np.ndarray, priorities: np.ndarray, /) -> Call:
        """Prepare an update."""
        index, values = _on_device((slots.astype(np.int32), priorities))

        def call() -> None:
            self._state = jax.block_until_ready(self._update(self._state, index, values))

        return call

    def nbytes(self) -> int:
        """Count all leaves of the state."""
        return replay.state_nbytes(self._state)


class Cpprb:
    """cpprb's prioritised buffer: C++ trees, rows in NumPy arrays."""

    needs = ("cpprb",)

    def __init__(self, example: Rows, capacity: int) -> None:
        columns = {
            name: {"shape": value.shape or 1, "dtype": value.dtype}
            for name, value in example.items()
        }
        library = importlib.import_module("cpprb")
        self._buffer = library.PrioritizedReplayBuffer(capacity, columns, alpha=ALPHA)

    def add(self, rows: Rows, _priorities: np.ndarray, /) -> Call:
        """Prepare an add at the largest priority so far.

        Priorities can be given to `add`, but version 11.0.0 hands them to the wrong rows where
        a batch goes over the end of the ring.
        """
        return lambda: self._buffer.add(**rows)

    def sample(self, count: int, _seed: int, /) -> Call:
        """Prepare a draw by the stored priorities; cpprb takes no seed."""
        return lambda: self._buffer.sample(count, beta=BETA)

    def update(self, slots: np.ndarray, priorities: np.ndarray, /) -> Call:
        """Prepare an update."""
        index = slots.astype(np.uint64)  # what it would convert them to
        return lambda: self._buffer.update_priorities(index, priorities)

    def nbytes(self) -> None:
        """Count nothing: its arrays and trees are out of Python's reach."""


class Torchrl:
    """torchrl's prioritised buffer of TensorDicts: C++ trees, rows in Torch tensors."""

    needs = ("torchrl.data", "torchrl._torchrl")  # the second one holds the trees

    def __init__(self, example: Rows, capacity: int) -> None:
        del example  # the first batch shows what rows look like
        self._torch = importlib.import_module("torch")
        self._tensor_dict = importlib.import_module("tensordict").TensorDict
        data = importlib.import_module("torchrl.data")
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it announces every storage
        self._buffer = data.TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=data.LazyTensorStorage(capacity)
        )

    def add(self, rows: Rows, priorities: np.ndarray, /) -> Call:
        """Prepare an add at torchrl's priority for new rows."""
        tensors = {name: self._torch.tensor(value) for name, value in rows.items()}
        batch = self._tensor_dict(tensors, batch_size=[len(priorities)])
        return lambda: self._buffer.extend(batch)

    def sample(self, count: int, _seed: int, /) -> Call:
        """Prepare a draw by the stored priorities; torchrl takes no seed in a call."""
        return lambda: self._buffer.sample(count)

    def update(self, slots: np.ndarray, priorities: np.ndarray, /) -> Call:
        """Prepare an update."""
        index, values = self._torch.tensor(slots), self._torch.tensor(priorities)
        return lambda: self._buffer.update_priority(index, values)

    def nbytes(self) -> None:
        """Count nothing: it tells the size of its rows, not that of its trees."""


PEERS: dict[str, Any] = {"flashbax": Flashbax, "cpprb": Cpprb, "torchrl": Torchrl}


def missing(names: list[str]) -> dict[str, str]:
    """Find the peers that cannot run here.

    Returns:
      For each of them why, and what to do about it.
    """
    reasons = {}
    for name in names:
        for module in PEERS[name].needs:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                reasons[name] = f"{error.name} is not installed; pip install {name}"
            except (ImportError, OSError) as error:
                # The message of a compiled module is about files of this machine.
                kind = type(error).__name__
                reasons[name] = f"{module} does not load ({kind}); python -c 'import {module}'"
            else:
                continue
            break
    return reasons


def _on_device(tree: Any) -> Any:
    return jax.block_until_ready(jax.tree.map(jnp.asarray, tree))
