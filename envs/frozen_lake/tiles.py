"""Pictures of a frozen lake's cells."""

import numpy as np

from envs.boards import paint, paint_flag, paint_player, pixel_centres

_ICE_RGB = (206, 230, 242)
_SHEEN_RGB = (232, 245, 250)
_SEAM_RGB = (176, 206, 222)
_RIM_RGB = (120, 160, 188)
_WATER_RGB = (24, 56, 96)


def draw_tiles(size: int) -> np.ndarray:
    """Draws one tile a code, ice, hole and goal without and with the player: [6, S, S, 3] uint8."""
    y, x = pixel_centres(size)
    ice = np.full((size, size, 3), _ICE_RGB, np.uint8)
    ice = paint(ice, (abs(x + y - 0.7) < 0.05) & (x > 0.15) & (y > 0.15), _SHEEN_RGB)
    ice = paint(ice, np.minimum(x, y) < 0.04, _SEAM_RGB)

    radius = np.hypot(x - 0.5, (y - 0.52) * 1.15)
    hole = paint(paint(ice, radius < 0.44, _RIM_RGB), radius < 0.37, _WATER_RGB)

    ground = [ice, hole, paint_flag(ice)]
    return np.stack([*ground, *map(paint_player, ground)])
