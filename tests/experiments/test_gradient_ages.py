import csv

import numpy as np
import pytest

from experiments import gradient_ages
from experiments.command_line import split_flags
from experiments.drift_profile import crossing_age
from experiments.gradient_ages import Products, cosines, main, shares
from tests.experiments.small import FLAGS


def products(rng, cosine, noise):
    """Products of gradients of known cosines to the fresh one, halves with noise of their own."""
    width, octaves = 4000, len(cosine)
    fresh = np.zeros(width)
    fresh[0] = 1.0

    def halves(direction):
        return [direction + noise * rng.normal(size=width) / np.sqrt(width) for _ in range(2)]

    first, second = halves(fresh)
    replayed, between = np.zeros(octaves), np.zeros(octaves)
    for octave, value in enumerate(cosine):
        direction = np.zeros(width)
        direction[:2] = 3.0 * value, 3.0 * np.sqrt(1 - value**2)
        one, other = halves(direction)
        replayed[octave] = one @ other
        between[octave] = np.mean([a @ b for a in (first, second) for b in (one, other)])
    return Products(first @ second, replayed, between, np.ones(octaves, bool))


def test_cosines_are_found_in_noise_larger_than_the_gradients():
    rng = np.random.default_rng(0)
    expected = np.array([0.8, 0.6, 0.4, 0.1])
    measured = [products(rng, expected, noise=3.0) for _ in range(40)]
    np.testing.assert_allclose(cosines(measured), expected, atol=0.06)
    np.testing.assert_allclose(shares(measured), expected / 0.8, atol=0.08)


def test_what_is_unknown_is_nan():
    none = Products(1.0, np.zeros(2), np.zeros(2), np.array([False, False]))
    some = Products(4.0, np.array([0.0, 9.0]), np.array([0.0, 3.0]), np.array([False, True]))
    assert np.isnan(cosines([none])).all()
    np.testing.assert_allclose(cosines([none, some])[1], 0.5)
    np.testing.assert_array_equal(shares([some]), [np.nan, 1.0])
    # Noise may leave a squared norm below 0: nothing can be said then.
    lost = Products(-1.0, np.array([9.0, 9.0]), np.array([3.0, 1.5]), np.array([True, True]))
    assert np.isnan(cosines([lost])).all()
    np.testing.assert_allclose(shares([lost]), [1.0, 0.5])


def test_a_crossing_lies_between_ages_in_logarithms():
    ages = np.array([1.0, 4.0, 16.0])
    assert crossing_age(np.array([1.0, 0.75, 0.25]), ages, 0.5) == pytest.approx(8.0)
    assert crossing_age(np.array([0.4, 0.3, 0.2]), ages, 0.5) == 1.0
    assert crossing_age(np.array([1.0, 0.9, 0.8]), ages, 0.5) == np.inf


def test_flags_after_a_lone_dash_are_the_experiments():
    assert split_flags(["--task", "a", "--", "--x", "--"]) == (["--task", "a"], ["--x", "--"])
    assert split_flags(["--task", "a"]) == (["--task", "a"], [])


def test_the_command_measures_what_the_buffer_holds(tmp_path, monkeypatch, capsys):
    words = ["gradient_ages", "--seeds=1", "--every=2", "--rows=8", f"--out={tmp_path / 'out'}"]
    monkeypatch.setattr("sys.argv", [*words, "--", *FLAGS])
    main()
    printed = capsys.readouterr().out
    assert "seed 0: the cosine falls to a half at age" in printed
    with (tmp_path / "out" / "gradients.csv").open() as file:
        lines = list(csv.DictReader(file))
    # Four iterations of three updates. After the second the rows held are 3 and 6 updates old,
    # after the fourth 3, 6, 9 and 12.
    assert [(line["iteration"], line["age"]) for line in lines] == [
        ("2", "2-3"),
        ("2", "4-7"),
        ("4", "2-3"),
        ("4", "4-7"),
        ("4", "8-15"),
    ]
    assert all(float(line["replayed"]) != 0 for line in lines)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--task=nowhere"], "--task: got 'nowhere', expected the name of an experiment"),
        (["--", "--arm", "on_policy"], "need replay"),
        (["--rows=0"], "--rows: got 0, expected an integer of at least 1"),
    ],
)
def test_what_cannot_be_measured_is_told(flags, told, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["gradient_ages", f"--out={tmp_path}", *flags])
    with pytest.raises(SystemExit, match="error: ") as stopped:
        gradient_ages.main()
    assert told in str(stopped.value)
