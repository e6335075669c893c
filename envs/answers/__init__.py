"""Checking of mathematical answers: exact values first, math-verify behind them."""

from envs.answers.checkers import CHECKERS, check_aime, check_gsm8k, check_math, make_checker
from envs.answers.math_verify_pool import MathVerifyPool
from envs.answers.verdict import Checker, Verdict

__all__ = [
    "CHECKERS",
    "Checker",
    "MathVerifyPool",
    "Verdict",
    "check_aime",
    "check_gsm8k",
    "check_math",
    "make_checker",
]
