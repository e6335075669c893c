"""Where things that can be made again are kept."""

import os
from pathlib import Path

CACHE_VARIABLE = "FRESHPER_CACHE"


def cache_directory(chosen: str | Path | None = None) -> Path:
    """Returns the folder chosen, else $FRESHPER_CACHE, else ~/.cache/freshper_jax."""
    folder = chosen or os.environ.get(CACHE_VARIABLE) or "~/.cache/freshper_jax"
    return Path(folder).expanduser()
