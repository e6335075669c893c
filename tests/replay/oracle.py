"""A plain float64 replay buffer, one row at a time, to check the real one against."""

import dataclasses

import numpy as np

SMALLEST = float(np.finfo(np.float32).tiny)
FALLBACK = float(np.float32(1e-6))


def pairs(handles):
    """Lists handles as (index, generation)."""
    return list(zip(handles.index.tolist(), handles.generation.tolist(), strict=True))


def since(later, earlier):
    """Counts the units from one int32 clock to another, also over the wrap."""
    return (int(later) - int(earlier) + (1 << 31)) % (1 << 32) - (1 << 31)


@dataclasses.dataclass
class Row:
    slot: int
    generation: int
    value: float
    base: float
    birth: int
    draws: int = 0
    start: int = 0  # in the ring of tokens
    length: int = 0


@dataclasses.dataclass
class Group:
    name: int
    number: int  # in order of opening
    members: list


class Oracle:
    """Keeps rows in a list, oldest first."""

    def __init__(
        self, capacity, insertion="base", *, eviction="oldest", tau=None, token_capacity=None
    ):
        self.capacity = capacity
        self.insertion = insertion
        self.eviction = eviction
        self.tau = np.inf if tau is None else tau
        self.places = None if token_capacity is None else {}
        self.token_capacity, self.head = token_capacity, 0
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

    def entry_bases(self, bases):
        bases = [self.clean(base) for base in bases]
        if self.insertion == "max":
            entry = max([row.base for row in self.rows] or bases)
            bases = [entry] * len(bases)
        return bases

    def add(self, values, bases, clock, lengths=None):
        handles = []
        bases = self.entry_bases(bases)
        room = self.room(min(len(bases), self.capacity), clock)
        for number, (value, base) in enumerate(zip(values, bases, strict=True)):
            slot = room[number % len(room)]
            self.evict([row for row in self.rows if row.slot == slot])
            row = Row(slot, self.added, float(value), base, int(clock))
            self.rows.append(row)
            self.added += 1
            handles.append((row.slot, row.generation))
            # Rows that only pass through take no tokens.
            if self.places is not None and number >= len(bases) - self.capacity:
                self.write_tokens(row, lengths[number])
                self.evict_broken()
        return handles

    def room(self, count, clock):
        """Lists the slots that new rows take."""
        if self.eviction == "oldest":
            return [(self.added + place) % self.capacity for place in range(count)]
        taken = {row.slot for row in self.rows}
        free = [slot for slot in range(self.capacity) if slot not in taken]
        worst = sorted(self.rows, key=lambda row: (self.log_priority(row, clock), row.slot))
        return (free + [row.slot for row in worst])[:count]

    def evict(self, rows):
        for gone in rows:
            self.rows.remove(gone)
            self.evicted += 1
            self.evicted_undrawn += gone.draws == 0

    def write_tokens(self, row, length):
        """Writes a row behind the newest one, or at place 0 if that ended behind the last."""
        if self.head >= self.token_capacity:
            self.head = 0
        row.start, row.length = self.head, int(length)
        for place in range(row.start, row.start + row.length):
            self.places[place] = row.generation
        self.head += row.length

    def evict_broken(self):
        """Lets rows go that lost tokens, and all that are older."""
        broken = [
            number
            for number, row in enumerate(self.rows)
            if any(
                self.places[place] != row.generation
                for place in range(row.start, row.start + row.length)
            )
        ]
        self.evict(self.rows[: broken[-1] + 1] if broken else [])

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

    def log_priority(self, row, clock, tau=None):
        tau = self.tau if tau is None else tau
        return np.log(row.base) - since(clock, row.birth) / tau

    def leaves(self, clock, tau):
        """Lists what can be drawn: where it is, and the logarithm of its priority."""
        return [(row.slot, self.log_priority(row, clock, tau)) for row in self.rows]

    def places_to_draw(self):
        return self.capacity

    def probabilities(self, alpha, tau, clock):
        """P of every slot in float64, 0 for an empty one."""
        result = np.zeros(self.places_to_draw())
        leaves = self.leaves(clock, np.inf if tau is None else tau)
        if not leaves:
            return result
        index, logs = np.array([leaf for leaf, _ in leaves]), np.array([log for _, log in leaves])
        shares = np.exp(alpha * logs - (alpha * logs).max())
        result[index] = shares / shares.sum()
        return result

    def weights(self, probabilities, drawn, beta, normaliser):
        """The weights of what was drawn from the given slots (or groups), float64."""
        stored = [leaf for leaf, _ in self.leaves(0, np.inf)]
        weights = (len(stored) * probabilities[drawn]) ** -beta
        if normaliser == "batch_max":
            return weights / weights.max()
        if normaliser == "buffer_max":
            with np.errstate(divide="ignore", invalid="ignore"):
                return weights / ((len(stored) * probabilities[stored]) ** -beta).max()
        if normaliser == "mean":
            return weights / weights.mean()
        return weights


class GroupOracle(Oracle):
    """Keeps groups in runs of slots; a row joins the open group of its name or opens one."""

    def __init__(self, capacity, group_size, group_priority="mean", **options):
        super().__init__(capacity, **options)
        self.group_size, self.group_priority = group_size, group_priority
        self.runs = [None] * (capacity // group_size)
        self.next_run = self.opened = 0

    def add(self, values, bases, clock, names):
        handles = []
        bases = self.entry_bases(bases)
        room, taken = self.room_for_groups(min(len(bases), len(self.runs)), clock), 0
        for value, base, name in zip(values, bases, names, strict=True):
            run = self.open_run(name)
            if run is None:
                run = room[taken % len(room)]
                taken += 1
                self.next_run = (run + 1) % len(self.runs)
                if self.runs[run] is not None:
                    self.evict(self.runs[run].members)
                self.runs[run] = Group(int(name), self.opened, [])
                self.opened += 1
            slot = run * self.group_size + len(self.runs[run].members)
            row = Row(slot, self.added, float(value), base, int(clock))
            self.runs[run].members.append(row)
            self.rows.append(row)
            self.added += 1
            handles.append((row.slot, row.generation))
        return handles

    def open_run(self, name):
        for run, group in enumerate(self.runs):
            open_here = group is not None and len(group.members) < self.group_size
            if open_here and group.name == name:
                return run
        return None

    def room_for_groups(self, count, clock):
        runs = range(len(self.runs))
        if self.eviction == "oldest":
            return [(self.next_run + place) % len(self.runs) for place in range(count)]
        free = [run for run in runs if self.runs[run] is None]
        taken = [run for run in runs if self.runs[run] is not None]
        worst = sorted(taken, key=lambda run: (self.worth(run, clock), run))
        return (free + worst)[:count]

    def worth(self, run, clock):
        """Orders groups: those given up, then complete ones, then those under way."""
        group = self.runs[run]
        if len(group.members) == self.group_size:
            return self.value(run, clock, self.tau)
        given_up = self.opened - group.number > len(self.runs)
        return -np.inf if given_up else np.inf

    def value(self, run, clock, tau):
        """The logarithm of the priority of a group, of the members that are there."""
        logs = np.array([self.log_priority(row, clock, tau) for row in self.runs[run].members])
        if self.group_priority == "max":
            return logs.max()
        return logs.max() + np.log(np.exp(logs - logs.max()).mean())

    def complete(self):
        return [
            run
            for run, group in enumerate(self.runs)
            if group is not None and len(group.members) == self.group_size
        ]

    def leaves(self, clock, tau):
        return [(run, self.value(run, clock, tau)) for run in self.complete()]

    def places_to_draw(self):
        return len(self.runs)
