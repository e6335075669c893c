"""A process that asks math-verify: run as a script by `envs.answers.math_verify_pool`.

It writes one line when it is ready, then reads pairs, a JSON line each, and answers each with a
line. Nothing of this project is imported, so that a start costs math-verify's import alone.
"""

import contextlib
import json
import os
import signal
import sys

MEMORY = 4 << 30  # bytes; a tower of powers would take all there is


def main() -> None:
    """Answers until the input ends."""
    seconds = float(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries may print
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import math_verify

    configs = [
        math_verify.LatexExtractionConfig(boxed_match_priority=0),
        math_verify.ExprExtractionConfig(),
    ]

    def parse(text: str) -> list:
        # No timeouts of its own, which need a signal handler: the caller ends this process.
        return math_verify.parse(f"${text}$", configs, parsing_timeout=None)

    # The first answer costs more than a second; nobody waits for it with a deadline.
    math_verify.verify(parse("1+x"), parse(r"\frac{x}{2}"), timeout_seconds=None)
    print("ready", file=answers)
    for line in sys.stdin:
        # The caller kills a process that takes too long; this is for when the caller is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 1)
        gold, answer = json.loads(line)
        try:
            parsed = parse(gold), parse(answer)
            # The second part of a result is the text itself; alone it says nothing was read.
            if all(any(not isinstance(part, str) for part in side) for side in parsed):
                right = math_verify.verify(*parsed, strict=True, timeout_seconds=None)
                verdict = "right" if right else "wrong"
            else:
                verdict = "unreadable"
        except Exception:  # sympy raises all kinds, RecursionError and MemoryError among them
            verdict = "unreadable"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(verdict, file=answers)


if __name__ == "__main__":
    main()
