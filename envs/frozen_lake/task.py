"""FrozenLake: cross the ice to the goal without falling into a hole.

The dynamics are those of gymnasium's FrozenLake-v1.
"""

from dataclasses import replace

from envs.frozen_lake.tiles import draw_tiles
from envs.grid_walk.bank import Scatter
from envs.grid_walk.rules import Rules
from envs.grid_walk.task import Preset, WalkTask, tell_of_slips
from envs.prompts import Wording

ACTIONS = ("Left", "Down", "Right", "Up")
SYMBOLS = "_OGPX√"  # ice, hole, goal; the player on ice, in a hole, on the goal
FORMAT_PENALTY = -0.15

FIXED_MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": (
        "SFFFFFFF",
        "FFFFFFFF",
        "FFFHFFFF",
        "FFFFFHFF",
        "FFFHFFFF",
        "FHHFFFHF",
        "FHFFHFHF",
        "FFFHFFFG",
    ),
}

_FIRM = Rules(ACTIONS, rewards=(0.0, 0.0, 1.0), hazard_ends=True)
_SLIPPERY = replace(_FIRM, success_rate=1 / 3)


def _preset(name: str, source: Scatter | tuple[str, ...], rules: Rules, horizon: int) -> Preset:
    return Preset(name, source, rules, horizon, invalid_reward=0.0, format_penalty=FORMAT_PENALTY)


PRESETS = {
    preset.name: preset
    for preset in (
        _preset("4x4", Scatter(4, 4, min_path=2, max_path=10), _FIRM, 10),
        _preset("8x8", Scatter(8, 8, min_path=2, max_path=30), _FIRM, 30),
        _preset("slippery-4x4", Scatter(4, 4, min_path=2), _SLIPPERY, 20),
        _preset("slippery-8x8", Scatter(8, 8, min_path=2), _SLIPPERY, 60),
        # As the paper's released settings have it: firm ice, and the goal may be one step away.
        _preset("paper", Scatter(4, 4, max_path=10), _FIRM, 10),
        # gymnasium's own: its two maps, and maps drawn as its generator draws them.
        _preset("fixed-4x4", FIXED_MAPS["4x4"], _SLIPPERY, 100),
        _preset("fixed-8x8", FIXED_MAPS["8x8"], _SLIPPERY, 200),
        _preset("corners-4x4", Scatter(4, 4, corners=True), _SLIPPERY, 100),
        _preset("corners-8x8", Scatter(8, 8, corners=True), _SLIPPERY, 200),
    )
}


def wording(rules: Rules) -> Wording:
    """Returns what the task says; of slippery ice it speaks only where the ice is slippery."""
    told = (
        "You are crossing a frozen lake: reach the goal and do not step into a hole, which ends "
        "the walk. You move one cell at a time, over ice and onto the goal alike; at the edge of "
        "the lake a step outward leaves you where you are."
    )
    return Wording(
        goal="Walk to the goal, not into a hole.",
        rules=told + tell_of_slips(rules, "ice"),
        legend="Symbols: _ ice, O hole, G goal, P you, X you in a hole, √ you on the goal.",
        actions=ACTIONS,
    )


FROZEN_LAKE = WalkTask("FrozenLake", SYMBOLS, PRESETS, wording, draw_tiles)
