"""What the model is told: system prompts and observations."""

from collections.abc import Sequence

from envs.retrieval import Hit

STYLES = ("minimal", "default")

UNAVAILABLE = "The search engine cannot be reached now."
NOTHING = "Nothing was found."


def system_prompt(style: str, *, searches: int, horizon: int) -> str:
    """Returns the text that opens a conversation in a style of `STYLES`."""
    if style == "minimal":
        return "Search, then answer."
    return (
        "You answer questions of fact, and you may look things up first.\n"
        "Begin each reply by thinking between <think> and </think>. Then do one of two things.\n"
        "To look something up, write what to look for between <search> and </search>, and stop. "
        "The passages that were found come back between <information> and </information>.\n"
        "To finish, write the answer between <answer> and </answer>: a name, a number or a few "
        "words, without a sentence around it. It cannot be changed after that.\n"
        f"You have at most {searches} searches and {horizon} replies in all. "
        "A question may need several searches, one building on the other. "
        "If nothing helps, give your best guess.\n"
        "For example: <think>I am not sure when it was built.</think>"
        "<search>year the Eiffel Tower was finished</search>\n"
        "and after reading: <think>The first passage says so.</think><answer>1889</answer>"
    )


def opening_text(style: str, question: str) -> str:
    """Returns the first observation."""
    return question if style == "minimal" else f"Question: {question}"


def turn_text(
    style: str,
    news: str,
    *,
    question: str | None,
    searches_left: int,
    replies_left: int,
) -> str:
    """Returns a later observation.

    Args:
        style: one of `STYLES`.
        news: what came of the last reply.
        question: repeated at the end; None leaves it out.
        searches_left: searches that may still be made.
        replies_left: replies that the episode may still take.
    """
    parts = [news] if news else []
    if style != "minimal":
        parts.append(
            f"Searches left: {searches_left}. Replies left: {replies_left}."
            + (" This is the last one: answer now." if replies_left == 1 else "")
        )
    if question is not None:
        parts.append(opening_text(style, question))
    return "\n".join(parts)


def passages_text(hits: Sequence[Hit]) -> str:
    """Returns passages as the model reads them, one a line, before they are cut."""
    return "\n".join(
        f'Doc {number}(Title: "{hit.title}") {" ".join(hit.text.split())}'
        for number, hit in enumerate(hits, 1)
    )


def information_text(text: str) -> str:
    """Returns text between the tags of information."""
    return f"<information>{text}</information>"


def invalid_text(style: str) -> str:
    """Returns what follows a reply that does nothing."""
    if style == "minimal":
        return "Invalid."
    return (
        "That reply did nothing. Write a query between <search> and </search>, "
        "or the answer between <answer> and </answer>."
    )


def spent_text(style: str) -> str:
    """Returns what follows a search that is not made because none are left."""
    return "No searches left." if style == "minimal" else "No searches are left, so answer now."
