"""CliffWalking: walk to the goal beside a cliff, from which one falls back to the start.

The dynamics are those of gymnasium's CliffWalking-v1, after example 6.6 of Sutton and Barto,
Reinforcement Learning: An Introduction, 2020.
"""

from dataclasses import replace

from envs.cliff_walking.tiles import draw_tiles
from envs.grid_walk.bank import Scatter
from envs.grid_walk.rules import Rules
from envs.grid_walk.task import Preset, WalkTask, tell_of_slips
from envs.prompts import Wording

ACTIONS = ("Up", "Right", "Down", "Left")
SYMBOLS = "oCTxxx"  # ground, cliff, goal; the player on any of them

STANDARD_MAP = ("FFFFFFFFFFFF", "FFFFFFFFFFFF", "FFFFFFFFFFFF", "SCCCCCCCCCCG")

_RULES = Rules(ACTIONS, rewards=(-1.0, -100.0, -1.0), hazard_ends=False)
_STANDARD = Preset(
    "standard", STANDARD_MAP, _RULES, horizon=50, invalid_reward=-1.0, format_penalty=-1.0
)

PRESETS = {
    preset.name: preset
    for preset in (
        _STANDARD,
        replace(_STANDARD, name="slippery", rules=replace(_RULES, success_rate=1 / 3), horizon=200),
        # As the paper has it: four times the steps, and a small fine for a reply that is no action.
        replace(_STANDARD, name="paper", horizon=200, invalid_reward=-0.1),
        # Cliffs, start and goal anywhere, so that there are maps which no policy has learnt on. A
        # fall costs two steps, and the way back. Where it costs much more, not falling is nearly
        # all there is to learn, and one who stands still does not fall.
        replace(
            _STANDARD,
            name="random",
            source=Scatter(4, 6, min_path=3, max_path=15),
            rules=replace(_RULES, rewards=(-1.0, -2.0, -1.0)),
            horizon=15,
            format_penalty=-2.0,
        ),
    )
}


def wording(rules: Rules) -> Wording:
    """Returns what the task says; of slippery ground it speaks only where it is slippery."""
    plain, cliff, _ = (abs(reward) for reward in rules.rewards)
    told = (
        "You are walking to a goal beside a cliff. You move one cell at a time; at the edge of "
        f"the map a step outward leaves you where you are. Each step costs {plain:g}. A step onto "
        f"the cliff costs {cliff:g} and puts you back at the start. The goal ends the walk."
    )
    return Wording(
        goal="Walk to the goal, not onto the cliff.",
        rules=told + tell_of_slips(rules, "ground"),
        legend="Symbols: o ground, C cliff, T goal, x you.",
        actions=ACTIONS,
    )


CLIFF_WALKING = WalkTask("CliffWalking", SYMBOLS, PRESETS, wording, draw_tiles)
