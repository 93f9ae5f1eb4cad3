"""MAN-13: the pages of layers that keep states."""

import re
from types import ModuleType
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from kvproof import fast, spec

from ..spec.ragged_batches import i32

MAMBA = spec.MambaSpec(4, ((2, 3), (4,)), ("float32", ml_dtypes.bfloat16))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("shards", [1, 2])
def test_man_13_state_pages_are_advanced_and_copied(package: ModuleType, shards: int, kind: str) -> None:
    """Each shard has ids of its own (POOL-12)."""
    mesh = jax.make_mesh((shards,), ("dp",), axis_types=(jax.sharding.AxisType[kind],))
    room = package.StatePages.init(mesh, MAMBA, 3, head_axes=[0, None])
    assert [array.shape for array in room.pages] == [(3 * shards, 2, 3), (3 * shards, 4)]
    states = [np.arange(1.0, 2 * shards + 1).reshape(-1, *[1] * len(shape)) + np.zeros(shape) for shape in MAMBA.shapes]
    given = [state.astype(dtype) for state, dtype in zip(states, room.dtypes, strict=True)]
    written = room.write(i32(*[1, -1] * shards), given)
    for array in room.pages:
        assert package is fast or not array.any(), "a value is never changed; fast's is given away"
    copies = ([1, 1], [2, -1])
    copied = written.copy_pages(*(copies if shards == 1 else ([ids] * shards for ids in copies)))
    for page_ids in (i32(*[1, 0] * shards), i32(*[2, -1] * shards)):
        for state, wanted in zip(map(np.asarray, copied.read(page_ids)), given, strict=True):
            assert np.array_equal(state[::2], wanted[::2])
            assert not state[1::2].any()


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((None, None, 3), TypeError, "spec must be a MambaSpec, not NoneType"),
        ((None, MAMBA, 1), ValueError, "num_pages=1"),
        ((None, spec.MambaSpec(4, ((2,),), ("int8",)), 3), TypeError, "spec.dtypes=int8"),
        ((None, spec.MambaSpec(4, ((0,),), ("float32",)), 3), ValueError, "spec.shapes=0"),
        ((None, MAMBA, 3, None, [0]), ValueError, "head_axes 1 axes"),
        ((None, MAMBA, 3, None, [2, None]), IndexError, "head_axes=2"),
        (
            (jax.make_mesh((3,), ("tp",), devices=jax.devices()[:3]), MAMBA, 3, None, [0, None]),
            ValueError,
            "2 heads can't be ",
        ),
    ],
)
def test_r1_state_pages_that_can_not_be_are_refused(
    package: ModuleType, arguments: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        package.StatePages.init(*arguments[:4], head_axes=arguments[4] if len(arguments) > 4 else None)


def test_r1_ids_and_states_must_fit(package: ModuleType) -> None:
    room = package.StatePages.init(jax.make_mesh((2,), ("dp",)), MAMBA, 3)
    with pytest.raises(ValueError, match=r"page_ids.shape=\(1,\) must be of 2 shards"):
        room.read(i32(1))
    with pytest.raises(ValueError, match="states has 1 arrays, not 2"):
        room.write(i32(1, 1), [np.zeros((2, 2, 3), np.float32)])
    with pytest.raises(ValueError, match="sources must have 2 rows"):
        room.copy_pages([[1]], [[2]])
    with pytest.raises(ValueError, match="does not fit an int32"):
        room.copy_pages([[1], [2**31]], [[2], [2]])
