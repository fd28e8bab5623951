"""The list of planted bugs fits the source; otherwise `make mutants` would check less than it says."""

from __future__ import annotations

from pathlib import Path

from tests import mutants
from tests.mutants.catalog import load_mutants

ROOT = Path(__file__).parents[2]


def test_every_planted_bug_fits_its_file() -> None:
    planted = load_mutants(Path(mutants.__file__).parent)
    assert len(planted) > 100
    assert [problem for mutant in planted if (problem := mutant.problem(ROOT)) is not None] == []
