import pytest
import rich.console

from experiments.options import OptionsError
from experiments.progress import Console
from experiments.references import main, reference_table


def test_table_holds_random_and_optimal_play():
    console = rich.console.Console(width=100, record=True)
    names = ["cliff_walking/standard", "frozen_lake/fixed-4x4"]
    console.print(reference_table(names, Console(console)))
    rows = [line.split("│") for line in console.export_text().splitlines() if "play" in line]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows[1:]]
    assert cells[0] == ["cliff_walking/standard", "1024", "optimal play", "1.000", "-13.000"]
    # gymnasium's own source gives 0.74 as the optimum of this lake.
    assert cells[1] == ["frozen_lake/fixed-4x4", "1024", "optimal play", "0.744", "0.744"]


def test_unknown_names_are_refused(monkeypatch):
    with pytest.raises(OptionsError, match="no experiment of the name 'lake'"):
        reference_table(["lake/4x4"], Console())
    monkeypatch.setattr("sys.argv", ["references", "cliff_walking/steep"])
    with pytest.raises(SystemExit, match="error: --task: got 'steep'"):
        main()
