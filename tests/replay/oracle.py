"""A plain float64 replay buffer, one row at a time, to check the real one against."""

import dataclasses

import numpy as np

SMALLEST = float(np.finfo(np.float32).tiny)
FALLBACK = float(np.float32(1e-6))


def pairs(handles):
    """Lists handles as (index, generation)."""
    return list(zip(handles.index.tolist(), handles.generation.tolist(), strict=True))


@dataclasses.dataclass
class Row:
    slot: int
    generation: int
    value: float
    base: float
    birth: int
    draws: int = 0


class Oracle:
    """Keeps rows in a list, oldest first."""

    def __init__(self, capacity, insertion="base"):
        self.capacity = capacity
        self.insertion = insertion
        self.rows = []
        self.added = 0
        self.evicted = 0
        self.evicted_undrawn = 0
        self.stale = 0
        self.replaced = 0

    def clean(self, base):
        base = float(np.float32(base))
        if not (np.isfinite(base) and base >= 0):
            self.replaced += 1
            return FALLBACK
        return max(base, SMALLEST)

    def add(self, values, bases, clock):
        handles = []
        bases = [self.clean(base) for base in bases]
        if self.insertion == "max":
            entry = max([row.base for row in self.rows] or bases)
            bases = [entry] * len(bases)
        for value, base in zip(values, bases, strict=True):
            if len(self.rows) == self.capacity:
                gone = self.rows.pop(0)
                self.evicted += 1
                self.evicted_undrawn += gone.draws == 0
            row = Row(self.added % self.capacity, self.added, float(value), base, int(clock))
            self.rows.append(row)
            self.added += 1
            handles.append((row.slot, row.generation))
        return handles

    def find(self, handle):
        for row in self.rows:
            if (row.slot, row.generation) == tuple(handle):
                return row
        return None

    def update(self, handles, bases, clock=None):
        for handle, base in zip(handles, bases, strict=True):
            row = self.find(handle)
            if row is None:
                self.stale += 1
                continue
            row.base = self.clean(base)
            if clock is not None:
                row.birth = int(clock)

    def mark(self, handles):
        for handle in handles:
            row = self.find(handle)
            if row is not None:
                row.draws += 1

    def probabilities(self, alpha, tau, clock):
        """P of every slot in float64, 0 for an empty one."""
        result = np.zeros(self.capacity)
        if not self.rows:
            return result
        tau = np.inf if tau is None else tau
        logs = np.array(
            [alpha * (np.log(row.base) - (clock - row.birth) / tau) for row in self.rows]
        )
        shares = np.exp(logs - logs.max())
        for row, share in zip(self.rows, shares / shares.sum(), strict=True):
            result[row.slot] = share
        return result

    def weights(self, probabilities, drawn_slots, beta, normaliser):
        """The weights of the rows in the given slots, float64."""
        rows = len(self.rows)
        weights = (rows * probabilities[drawn_slots]) ** -beta
        if normaliser == "batch_max":
            return weights / weights.max()
        if normaliser == "buffer_max":
            slots = [row.slot for row in self.rows]
            return weights / ((rows * probabilities[slots]) ** -beta).max()
        if normaliser == "mean":
            return weights / weights.mean()
        return weights
