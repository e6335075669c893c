r"""How fast answers are checked: `python -m benchmarks.answers [--json FILE]`.

All rates are checks per second of CPU time of one core. The replies have about 300 characters,
those of GSM8K ending in `#### 1234`, those of AIME in `\boxed{123}`.
"""

import argparse
import functools
import json
from pathlib import Path

from benchmarks.envs import rate as benchmark_rate
from envs.answers import check_math, make_checker

COUNT = 1000
TARGETS = {"gsm8k_checks_per_s": 100_000, "aime_checks_per_s": 100_000}

_REASONING = "Each of the crates holds 12 jars, so we add what is left over from the first day. "


def replies(ending: str) -> list[str]:
    """Returns `COUNT` replies whose endings hold the numbers from 0 up."""
    opening = _REASONING * 4
    return [opening[: 300 - len(ending)] + ending.format(number) for number in range(COUNT)]


def measure(*, seconds: float = 0.5) -> dict[str, float]:
    """Returns every figure by name, measured for so long."""
    rate = functools.partial(benchmark_rate, seconds=seconds)
    golds = [str(number) for number in range(COUNT)]
    endings = {
        "gsm8k": "\n#### {}",
        "gsm8k_untidy": "\n#### **${}.00** dollars in all",
        "aime": "\nTherefore the answer is $\\boxed{{{}}}$.",
        "aime_untidy": "\nTherefore the answer is $\\boxed{{m+n={}^\\circ}}$.",
    }
    figures = {}
    for name, ending in endings.items():
        check, written = make_checker(name.split("_")[0]), replies(ending)
        assert (check(golds, written) == 1).all(), name
        key = f"{name}_checks_per_s"
        figures[key] = rate(lambda c=check, w=written: c(golds, w), COUNT)  # type: ignore[misc]
    surds = [rf"\frac{{{number}\sqrt{{3}}}}{{2}}" for number in range(COUNT)]
    written = replies(r" so it is \boxed{{0.5 \cdot {}√3}}")
    assert (check_math(surds, written) == 1).all()
    figures["surd_checks_per_s"] = rate(lambda: check_math(surds, written), COUNT)
    long = ["so " * 33_000 + "\n#### 7"] * 10
    check = make_checker("gsm8k")
    figures["gsm8k_checks_of_100k_characters_per_s"] = rate(lambda: check(golds[:10], long), 10)
    return figures


def main() -> None:
    """Measures, prints a table, and writes the figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description="How fast answers are checked, on one core.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    path = parser.parse_args().json
    if path is not None and not path.parent.is_dir():
        parser.error(f"--json: there is no folder {path.parent}")
    figures = measure()
    for name, value in figures.items():
        target = f"  (at least {TARGETS[name]:,})" if name in TARGETS else ""
        print(f"{name:40} {value:>14,.1f}{target}")
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
