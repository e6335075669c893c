"""What the model is told of Sokoban."""

from envs.prompts import Wording
from envs.sokoban.rules import ACTIONS

WORDING = Wording(
    goal="Push each box onto a target.",
    rules=(
        "You are solving a Sokoban puzzle: push every box onto a target. "
        "You move one cell at a time. Walking into a box pushes it one cell further, if that cell "
        "is free; a box cannot be pulled, and neither you nor a box can pass a wall or another "
        "box. A box pushed into a corner that is no target cannot be moved out again, so think "
        "ahead."
    ),
    legend=(
        "Symbols: # wall, _ floor, O target, X box, √ box on a target, P you, S you on a target."
    ),
    actions=ACTIONS,
)
