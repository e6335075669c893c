"""What the model is told of a game on a board: system prompt and observations, in four styles."""

from collections.abc import Sequence
from dataclasses import dataclass

from envs.actions import SEPARATOR

STYLES = ("minimal", "coordinates", "default", "reference")
BARE = ("minimal", "coordinates")  # styles that show the state alone


@dataclass(frozen=True)
class Wording:
    """What a task says of itself: `goal` in a few words, `rules` and `legend` in full."""

    goal: str
    rules: str
    legend: str
    actions: tuple[str, ...]


def system_prompt(style: str, wording: Wording, *, tag: str, max_actions: int) -> str:
    """Returns the text that opens a conversation in a style of `STYLES`."""
    if style in BARE:
        return f"{wording.goal} Reply <{tag}>{'|'.join(wording.actions)}</{tag}>."
    if style == "reference":
        return "You are a helpful assistant who answers with care."
    return "\n".join((wording.rules, wording.legend, _action_rule(wording, tag, max_actions)))


def observation_texts(
    style: str,
    wording: Wording,
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
        wording: what the task says.
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
    rows = zip(boards, turns, actions_left, rewards, valid, strict=True)
    if style == "default":
        warning = "Your last reply held no valid action.\n"
        form = f"<{tag}>action</{tag}>"
        if max_actions > 1:
            form = f"<{tag}>action {SEPARATOR} action</{tag}>"
        return tuple(
            f"{'' if ok or turn == 1 else warning}"
            f"Turn {turn}, {left} actions left:\n{board}\nReply with {form}."
            for board, turn, left, _, ok in rows
        )
    opening = "\n".join((wording.rules, wording.legend, _action_rule(wording, tag, max_actions)))
    return tuple(
        f"{opening if turn == 1 else _tell(reward)}\n\n"
        f"Turn {turn}:\nState:\n{board}\nYou have {left} actions left. "
        f"Your output must always be <{tag}> [your answer] </{tag}> and nothing else. "
        "Decide the next action:"
        for board, turn, left, reward, _ in rows
    )


def _tell(reward: float) -> str:
    return f"Reward:\n{round(reward, 4):g}"


def _action_rule(wording: Wording, tag: str, max_actions: int) -> str:
    names, one, another = ", ".join(wording.actions), wording.actions[-1], wording.actions[0]
    example = f"<{tag}>{one}</{tag}>"
    if max_actions == 1:
        return f"Actions: {names}. Reply with one action in its tag, for example {example}."
    several = f"<{tag}>{one} {SEPARATOR} {another}</{tag}>"
    return (
        f"Actions: {names}. Reply with 1 to {max_actions} actions in one tag, "
        f"parted by {SEPARATOR}, for example {example} or {several}."
    )
