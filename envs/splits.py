"""Which levels a policy learns on and on which it is measured: decided by what they hold."""

import numpy as np

SPLITS = ("train", "held_out")
HELD_OUT_SHARE = 8  # one hash in so many belongs to the held-out split


def is_held_out(hashes: np.ndarray) -> np.ndarray:
    """Returns whether each level of a hash, [N] uint64, is of the held-out split."""
    return hashes % np.uint64(HELD_OUT_SHARE) == 0
