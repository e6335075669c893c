"""Pictures of the cells of a walk along a cliff."""

import numpy as np

from envs.boards import paint, paint_flag, paint_player, pixel_centres

_GRASS_RGB = (150, 186, 108)
_BLADE_RGB = (112, 152, 78)
_ROCK_RGB = (92, 76, 70)
_CREVICE_RGB = (48, 38, 36)


def draw_tiles(size: int) -> np.ndarray:
    """Draws one tile a code, grass, cliff and goal without and with the player: [6, S, S, 3]."""
    y, x = pixel_centres(size)
    grass = np.full((size, size, 3), _GRASS_RGB, np.uint8)
    blades = ((x * 6 + (y * 5).astype(int) % 2 * 0.5) % 1 < 0.2) & ((y * 5) % 1 > 0.45)
    grass = paint(grass, blades, _BLADE_RGB)

    cliff = np.full_like(grass, _ROCK_RGB)
    cliff = paint(cliff, abs(y - 0.5 - 0.25 * np.sin(9 * x)) < 0.13, _CREVICE_RGB)

    ground = [grass, cliff, paint_flag(grass)]
    return np.stack([*ground, *map(paint_player, ground)])
