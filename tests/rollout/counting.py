"""A text environment small enough to follow by hand: count down by naming the number."""

import numpy as np


class CountdownEnv:
    """Each row starts at `seed % 4 + 1` and shows it; naming it lowers it; 0 ends the episode.

    A right answer earns 1, a wrong one -1 and a format penalty of -0.25. A row is truncated
    after six turns.
    """

    system_prompt = "Count."

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.left = np.zeros(num_envs, int)
        self.turns = np.zeros(num_envs, int)
        self.resets: list[int] = []

    def reset(self, *, seed=None, options=None):
        mask = options["reset_mask"]
        for row in np.flatnonzero(mask):
            self.resets.append(seed[row])
            self.left[row], self.turns[row] = seed[row] % 4 + 1, 0
        return [str(n) for n in self.left], {}

    def step(self, actions):
        assert len(actions) == self.num_envs
        open_rows = (self.left > 0) & (self.turns < 6)
        right = np.array([a == str(n) for a, n in zip(actions, self.left, strict=True)])
        self.left -= right & open_rows
        self.turns += open_rows
        reward = np.where(open_rows, np.where(right, 1.0, -1.0), 0.0).astype(np.float32)
        infos = {
            "format_penalty": np.where(open_rows & ~right, -0.25, 0.0),
            "success": self.left == 0,
            "action_is_valid": right,
            "action_is_effective": right,
            "turns_taken": self.turns.copy(),
            "shown": np.array([str(n) for n in self.left], object),
        }
        texts = [str(n) for n in self.left]
        return texts, reward, self.left == 0, (self.left > 0) & (self.turns >= 6), infos
