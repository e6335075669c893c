import numpy as np

from envs.sokoban import canonical_hashes, render_text
from tests.envs.sokoban import oracle

LEVEL = "######\n#P_###\n#_X__#\n##O_##\n##___#\n######"


def test_hash_is_shared_by_the_orbit_alone():
    orbit = oracle.orbit(LEVEL)
    assert len(orbit) == 8
    hashes = canonical_hashes(np.array([oracle.codes(text) for text in sorted(orbit)]))
    assert hashes.dtype == np.uint64
    assert len(np.unique(hashes)) == 1
    changed = LEVEL.replace("P_", "_P")
    assert canonical_hashes(np.array([oracle.codes(changed)]))[0] != hashes[0]


def test_oblong_levels_turn_too():
    level = "######\n#PXO_#\n#____#\n######"
    hashes = {
        int(canonical_hashes(np.array([oracle.codes(text)]))[0]) for text in oracle.orbit(level)
    }
    assert len(hashes) == 1


def test_hash_tells_orbits_apart(banks):
    texts = render_text(banks["simple"].train.cells[:400])
    canonical = [min(oracle.orbit(text)) for text in texts]
    hashes = canonical_hashes(banks["simple"].train.cells[:400]).tolist()
    assert len(set(zip(canonical, hashes, strict=True))) == len(set(canonical)) == len(set(hashes))


def test_the_bits_that_split_are_even():
    cells = np.random.default_rng(0).integers(0, 7, (4096, 6, 6))
    counts = np.bincount((canonical_hashes(cells) % np.uint64(8)).astype(int), minlength=8)
    assert ((counts - 512) ** 2 / 512).sum() < 24.3  # chi-square, 7 degrees of freedom, 0.1 %
