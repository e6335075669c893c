"""What the model is told: system prompt, question, and feedback on a wrong try."""

from envs.answers import Verdict

STYLES = ("minimal", "default", "reference")
FORMS = {"hashes": "#### 42", "boxed": r"\boxed{42}"}

_ENDINGS = {
    "hashes": 'End with a line that holds "####" and the final number alone, like "#### 42".',
    "boxed": r"End with the final answer in a box, like \boxed{42}.",
}


def system_prompt(style: str, form: str) -> str:
    """Returns the text that opens a conversation, for answers in a form of `FORMS`."""
    if style == "minimal":
        return f"Solve. End with {FORMS[form]}."
    if style == "reference":
        return "You are a helpful assistant."
    return "You solve mathematical problems. Reason step by step, briefly. " + _ENDINGS[form]


def first_text(style: str, form: str, question: str) -> str:
    """Returns what is shown before the first try."""
    if style == "minimal":
        return question
    if style == "reference":
        return f"{question}\nLet us think step by step. {_ENDINGS[form]}"
    return f"{question}\n\n{_ENDINGS[form]}"


def feedback(style: str, form: str, verdict: int) -> str:
    """Returns what is shown after a try that was not right."""
    if style == "reference":  # whatever was wrong
        return "Incorrect. Please think again."
    if style == "minimal":
        return "No answer." if verdict == Verdict.NO_ANSWER else "Wrong."
    if verdict == Verdict.NO_ANSWER:
        return f"I found no final answer. {_ENDINGS[form]}"
    if verdict == Verdict.UNREADABLE:
        return f"I could not read the final answer. Try again. {_ENDINGS[form]}"
    return f"That is not right. Look for the mistake and try again. {_ENDINGS[form]}"
