"""MAN-13: the pages of layers that keep states, against plain arrays and the specification's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec

from .cache_pairs import numbers

PAGES = 6
SPEC = fast.MambaSpec(16, ((3, 4), (4, 2, 2)), ("bfloat16", "float32"))

ids = st.lists(st.integers(-2, PAGES - 1), min_size=3, max_size=3)
distinct = st.permutations(range(PAGES)).map(lambda pages: pages[:3])


def states(seed: int, count: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    arrays = (rng.normal(size=(count, *shape)) for shape in SPEC.shapes)
    return tuple(array.astype(kind) for array, kind in zip(arrays, (jnp.bfloat16, np.float32), strict=True))


@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("write"), distinct, st.integers(0, 9)),
            st.tuples(st.just("copy"), distinct, distinct),
            st.tuples(st.just("read"), ids, st.none()),
        ),
        max_size=5,
    )
)
def test_states_are_written_read_and_copied_as_the_specifications(calls: list[Any]) -> None:
    """MAN-13: bit for bit; a negative id reads zeros and writes nothing."""
    ours, theirs = fast.StatePages.init(None, SPEC, PAGES), spec.StatePages.init(None, SPEC, PAGES)
    for kind, pages, more in calls:
        page_ids = np.array(pages, np.int32)
        if kind == "write":
            given = states(more, 3)
            ours, theirs = ours.write(page_ids, given), theirs.write(page_ids, given)
        elif kind == "copy" and not set(pages) & set(more):
            ours, theirs = ours.copy_pages(pages, more), theirs.copy_pages(pages, more)
        for mine, wanted in zip(ours.read(page_ids), theirs.read(page_ids), strict=True):
            assert mine.dtype == wanted.dtype
            assert (numbers(mine) == numbers(wanted)).all()
    everything = np.arange(PAGES, dtype=np.int32)
    for mine, wanted in zip(ours.read(everything), theirs.read(everything), strict=True):
        assert (numbers(mine) == numbers(wanted)).all()


def test_states_split_over_a_mesh_are_as_on_one_device() -> None:
    """CACHE-5, POOL-12: heads over one axis, pages and sequences over the other, ids of each shard its own."""
    mesh = jax.make_mesh((2, 2), ("dp", "tp"))
    room = fast.StatePages.init(mesh, SPEC, PAGES, head_axes=[1, 0])
    alone = [fast.StatePages.init(None, SPEC, PAGES) for _ in range(2)]
    assert room.pages[0].sharding.shard_shape(room.pages[0].shape) == (PAGES, 3, 2)
    assert room.pages[1].sharding.shard_shape(room.pages[1].shape) == (PAGES, 2, 2, 2)
    page_ids = [np.array([1, 5, -1], np.int32), np.array([2, -1, 1], np.int32)]
    given = [states(seed, 3) for seed in range(2)]
    together = tuple(np.concatenate(parts) for parts in zip(*given, strict=True))
    room = room.write(np.concatenate(page_ids), together)
    alone = [one.write(pages, state) for one, pages, state in zip(alone, page_ids, given, strict=True)]
    room = room.copy_pages([[1], [2]], [[3], [4]])
    alone = [alone[0].copy_pages([1], [3]), alone[1].copy_pages([2], [4])]
    wanted = [one.read(np.array([1, 3, 4], np.int32)) for one in alone]
    read = room.read(np.array([1, 3, 4] * 2, np.int32))
    for mine, *parts in zip(read, *wanted, strict=True):
        assert (numbers(mine) == numbers(np.concatenate(parts))).all()


def test_states_are_written_in_place() -> None:
    """MAN-13: outside of traced code, and in a jitted function that the pages are donated to."""
    room = fast.StatePages.init(None, fast.MambaSpec(16, ((64, 64),), ("bfloat16",)), 512)
    page_ids = np.array([3, 4], np.int32)
    given = (jnp.ones((2, 64, 64), jnp.bfloat16),)
    compiled = jax.jit(lambda room: room.write(page_ids, given), donate_argnums=0).lower(room).compile()
    analysis: Any = compiled.memory_analysis()
    assert analysis.alias_size_in_bytes >= room.pages[0].nbytes
    assert analysis.temp_size_in_bytes < room.pages[0].nbytes / 16
    place = room.pages[0].unsafe_buffer_pointer()
    after = room.write(page_ids, given).copy_pages([3], [7])
    assert after.pages[0].unsafe_buffer_pointer() == place
    assert room.pages[0].is_deleted()
    assert after.read(np.array([7], np.int32))[0].sum() == 64 * 64
