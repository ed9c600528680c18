"""A dozen cells of the kill matrix; `make chaos` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcore.plan import INPUTS
from tests.stack.chaos.cells import ALL, REPRESENTATIVE, Cell
from tests.stack.chaos.matrix import Matrix, matrix

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Iterator[Matrix]:
    with matrix(tmp_path_factory.mktemp("kill-matrix"), tiny_llama, REPRESENTATIVE) as made:
        yield made


@pytest.mark.parametrize("cell", REPRESENTATIVE, ids=str)
def test_a_run_comes_out_the_same_in_spite_of_a_kill(cell: Cell, killed: Matrix) -> None:
    verdict = killed.run(cell)
    assert verdict.passed, verdict
    if cell.moment == "working":
        assert verdict.retries == 0, "a stage makes an actor that died anew by itself"


def test_the_representative_cells_are_of_the_whole_matrix_which_has_every_stage() -> None:
    assert set(REPRESENTATIVE) <= set(ALL)
    assert {cell.stage for cell in ALL} == set(INPUTS)
    assert len(set(ALL)) == len(ALL) >= 30
