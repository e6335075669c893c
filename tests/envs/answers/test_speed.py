"""The promised rates."""

from benchmarks.answers import TARGETS, measure


def test_checks_a_second():
    figures = measure(seconds=0.05)
    for name, least in TARGETS.items():
        assert figures[name] > least, name
