"""What the model is told: system prompt and observations, in three styles."""

from collections.abc import Sequence

from envs.actions import SEPARATOR
from envs.sokoban.rules import ACTIONS

STYLES = ("minimal", "coordinates", "default", "reference")
BARE = ("minimal", "coordinates")  # styles that show the state alone

_LEGEND = "Symbols: # wall, _ floor, O target, X box, √ box on a target, P you, S you on a target."
_RULES = (
    "You are solving a Sokoban puzzle: push every box onto a target. "
    "You move one cell at a time. Walking into a box pushes it one cell further, if that cell "
    "is free; a box cannot be pulled, and neither you nor a box can pass a wall or another box. "
    "A box pushed into a corner that is no target cannot be moved out again, so think ahead."
)


def system_prompt(style: str, *, tag: str, max_actions: int) -> str:
    """Returns the text that opens a conversation in a style of `STYLES`."""
    if style in BARE:
        return f"Push each box onto a target. Reply <{tag}>{'|'.join(ACTIONS)}</{tag}>."
    if style == "reference":
        return "You are a helpful assistant who answers with care."
    return "\n".join((_RULES, _LEGEND, _action_rule(tag, max_actions)))


def observation_texts(
    style: str,
    boards: Sequence[str],
    *,
    tag: str,
    max_actions: int,
    turns: Sequence[int],
    actions_left: Sequence[int],
    rewards: Sequence[float],
    valid: Sequence[bool],
) -> tuple[str, ...]:
    """Returns what each row is shown before its next turn.

    Args:
        style: one of `STYLES`; those of `BARE` show the board alone.
        boards: the B boards as text.
        tag: the tag an action must stand in.
        max_actions: how many actions a reply may hold.
        turns: B turn numbers, 1 for the first.
        actions_left: B numbers of actions until the horizon.
        rewards: the B rewards of the last turn; not shown in the first.
        valid: whether each of the last replies was valid; not looked at in the first.
    """
    if style in BARE:
        return tuple(boards)
    write = _reference_turn if style == "reference" else _default_turn
    return tuple(
        write(board, tag, max_actions, turn, left, reward, ok)
        for board, turn, left, reward, ok in zip(
            boards, turns, actions_left, rewards, valid, strict=True
        )
    )


def _action_rule(tag: str, max_actions: int) -> str:
    names = ", ".join(ACTIONS)
    example = f"<{tag}>Right</{tag}>"
    if max_actions == 1:
        return f"Actions: {names}. Reply with one action in its tag, for example {example}."
    several = f"<{tag}>Right {SEPARATOR} Up</{tag}>"
    return (
        f"Actions: {names}. Reply with 1 to {max_actions} actions in one tag, "
        f"parted by {SEPARATOR}, for example {example} or {several}."
    )


def _default_turn(
    board: str, tag: str, max_actions: int, turn: int, left: int, reward: float, valid: bool
) -> str:
    del reward  # the default style shows the state alone
    warning = "" if valid or turn == 1 else "Your last reply held no valid action.\n"
    form = f"<{tag}>action</{tag}>"
    if max_actions > 1:
        form = f"<{tag}>action {SEPARATOR} action</{tag}>"
    return f"{warning}Turn {turn}, {left} actions left:\n{board}\nReply with {form}."


def _reference_turn(
    board: str, tag: str, max_actions: int, turn: int, left: int, reward: float, valid: bool
) -> str:
    del valid  # the reward alone tells
    opening = (
        f"{_RULES}\n{_LEGEND}\n{_action_rule(tag, max_actions)}\n\n"
        if turn == 1
        else f"Reward:\n{round(reward, 4):g}\n\n"
    )
    return (
        f"{opening}Turn {turn}:\nState:\n{board}\nYou have {left} actions left. "
        f"Your output must always be <{tag}> [your answer] </{tag}> and nothing else. "
        "Decide the next action:"
    )
