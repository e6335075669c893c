"""From a model's reply to actions."""

from envs.sokoban.rules import ACTIONS

TAGS = ("answer", "action")
SEPARATOR = "||"
SPECIAL_TOKENS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<action>",
    "</action>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
)

_ACTION_OF_NAME = {name.lower(): place for place, name in enumerate(ACTIONS)}


def parse_actions(reply: str, *, tag: str = "answer", max_actions: int = 1) -> tuple[int, ...]:
    """Reads the actions in the first `<tag>...</tag>` of a reply.

    Special tokens inside the tag are dropped, case and outer white space do not matter, and
    several actions are parted by `||`.

    Returns:
        Places in `ACTIONS`; empty if the reply is invalid: no closed tag, an unknown action,
        or more than `max_actions` of them. One wrong action makes the whole reply invalid.
    """
    # str.find does what the pattern `<tag>(.*?)</tag>` with DOTALL would, in linear time
    # even where a reply opens the tag a thousand times and never closes it.
    start = reply.find(f"<{tag}>")
    if start < 0:
        return ()
    start += len(tag) + 2
    end = reply.find(f"</{tag}>", start)
    if end < 0:
        return ()
    answer = reply[start:end]
    if "<" in answer:
        for token in SPECIAL_TOKENS:
            answer = answer.replace(token, "")
    names = answer.split(SEPARATOR, max_actions)
    if len(names) > max_actions:
        return ()
    actions = [_ACTION_OF_NAME.get(name.strip().lower(), -1) for name in names]
    return () if -1 in actions else tuple(actions)
