import numpy as np
import pytest

from p2l.model.tiles import multiply, tiled


@pytest.mark.parametrize(("rows", "depth", "columns"), [(4, 1, 1), (8, 33, 16), (12, 64, 100), (4, 7, 192)])
def test_tiles_are_the_product(rows, depth, columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, depth)).astype(np.float32)
    weight = rng.normal(size=(columns, depth)).astype(np.float32)
    laid_out = tiled(weight)
    found = np.full((rows, laid_out.shape[1]), np.nan, np.float32)
    multiply(x, laid_out, found)
    np.testing.assert_allclose(found[:, :columns], x @ weight.T, atol=1e-4)
    assert not found[:, columns:].any()
