"""The sizing machine: how many pages a budget holds, and what a cache of them looks like."""

from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..calls.arrays import DTYPES, HEAD_SIZES, SIZES
from ..calls.datum import Call, New, Ref
from ..calls.interfaces import plain_row
from ..calls.method import Table
from .base import Side
from .calling import Calling, Calls
from .draws import Drawing
from .layouts import Layout, takes_version
from .properties import start, step

__all__ = ["Sizing"]

_SHOWN = (
    *("num_pages", "max_num_pages_per_req", "num_slices_per_kv_cache_update_page", "num_head_shards"),
    *("num_page_shards", "kv_head_packing", "storage_head_dim", "storage_num_combined_kv_heads"),
    *("storage_num_kv_groups", "is_v2", "is_v3", "version", "page_size"),
)


_CREATE = plain_row(
    "create",
    ("mesh", "partition_manager", "kvdtype", "num_hidden_layers", "num_kv_heads", "max_model_length"),
)
"""How metadata is made of a budget."""


_LONGEST = 2**29
"""The tokens of a request whose page table alone is larger than all tables shall be, in pages of up to 256 tokens."""


class _Mesh:
    """A mesh as far as sizes are concerned: the number of devices along each axis."""

    def __init__(self, **axes: int) -> None:
        self.shape = axes

    def __repr__(self) -> str:
        return f"mesh of {self.shape}"


class Sizing(Calling):
    """Nothing is kept from call to call."""

    name = "sizing"
    levels = frozenset(LEVELS)
    capability = "caches"
    needs = ("RaggedPagesCacheMetaData", "AxisRules")
    examples, num_steps = 40, 10
    tables: ClassVar[tuple[Table, ...]] = (SIZES,)

    @start()
    def construct(self) -> None:
        """Nothing but the layouts that the backend has."""
        self.versions = [name for name in ("v3", "v2", "seq_on_lane") if takes_version(self.backend.names, name)]

    @step("CACHE-1", weight=6)
    def create(self, data: Drawing) -> None:
        """As many pages as the budget of a device holds, padding, scales and all layers counted, and no more."""
        dtype, version = data.one_of(DTYPES), data.one_of(self.versions)
        keys = data.one_of(HEAD_SIZES)
        values = data.one_of([keys, keys, data.one_of(HEAD_SIZES)])
        heads, layers, size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3)), data.one_of([16, 1, 33])
        shards = data.one_of([1, 1, data.one_of([n for n in (1, 2, 3) if heads % n == 0])])
        scaled = dtype == "int8" or (np.dtype(dtype).itemsize == 1 and data.one_of([False, True]))
        budget = data.draw(st.integers(0, 2**26)) if data.one_of([False, True]) else 2 ** data.draw(st.integers(14, 48))
        mesh = _Mesh(tp=shards) if shards > 1 else None
        layout = Layout(version, dtype, heads // shards, (keys, values), size, 1)
        page_bytes = (
            layers * size * (layout.rows * layout.columns * np.dtype(dtype).itemsize + scaled * 8 * layout.heads)
        )

        first = dict(zip(_CREATE.arguments, (mesh, New("AxisRules"), dtype, layers, heads, 100), strict=True))
        options = {"k_headdim": keys, "v_headdim": values, "page_size": size, "version": version}
        options |= {"budget_bytes": budget} | ({"slot_scales": True} if scaled else {})
        call = Call(Ref("RaggedPagesCacheMetaData"), "create", first | options)
        made = self.call(
            f"RaggedPagesCacheMetaData.create({mesh}, AxisRules(), {dtype!r}, {layers}, {heads}, 100, "
            f"k_headdim={keys}, v_headdim={values}, page_size={size}, version={version!r}, budget_bytes={budget}, "
            f"slot_scales={scaled})",
            lambda side: self.perform(side, call, _CREATE),
            "CACHE-1",
            _shown,
        )
        if not made.refused:
            count = int(made.backend.num_pages)
            most = (2**31 - 1) // size
            if not (count * page_bytes <= budget and ((count + 1) * page_bytes > budget or count >= most)):
                self.differ("CACHE-1", f"{budget // page_bytes} pages of {page_bytes} bytes", f"{count} pages")

    @step("CACHE-1", when=lambda self: self.spoilable())
    def misuse(self, source: Drawing) -> Calls:
        """Sizes, budgets and types that are none."""
        yield from self.each_spoilt(source.one_of(self.spoilable()), source)

    @step("CACHE-1", "CACHE-4")
    def describe(self, data: Drawing) -> None:
        """Metadata made by hand: its shape, its slices, and itself again from its text; or refused."""
        good: dict[str, Any] = {
            "num_hidden_layers": data.draw(st.integers(1, 3)),
            "max_model_length": data.likely([data.draw(st.integers(1, 5000))], [_LONGEST]),
            "num_kv_heads": 2 * data.draw(st.integers(1, 4)),
            "k_headdim": data.one_of(HEAD_SIZES),
            "v_headdim": data.one_of(HEAD_SIZES),
            "page_size": data.one_of([16, 1, 128]),
            "num_pages": data.draw(st.integers(2, 100)),
            "version": data.one_of(self.versions),
            "_kvdtype_str": data.one_of(["bf16", "f32", "f8_e4m3", "int8"]),
            "num_head_shards": data.one_of([1, 2]),
            "num_page_shards": data.one_of([1, 2]),
            "num_slices_per_kv_cache_update_page": data.one_of([8, 1, 64]),
            "max_num_tokens": data.one_of([-1, 1, 700]),
            "max_num_reqs": data.one_of([-1, 1, 30]),
        }
        wrong: list[dict[str, Any]] = [
            *({name: value} for name in ("num_kv_heads", "k_headdim", "page_size") for value in (0, -1, True, 1.0)),
            *({"version": value} for value in ("v1", 3)),
            *({"_kvdtype_str": value} for value in ("f64", 1)),
            {"num_pages": 2**31},
            *({name: 0} for name in ("max_num_tokens", "max_num_reqs")),
            {"hbm_utilization": 1.5},
        ]
        fault: dict[str, Any] = data.likely([{}], wrong)
        tokens, requests = (data.one_of([1, data.draw(st.integers(1, most))]) for most in (3000, 50))

        def act(side: Side) -> Any:
            made = side.names.get("RaggedPagesCacheMetaData")(**(good | fault))
            again = type(made).from_json(made.to_json())
            slices = made.get_padded_num_slices(), made.get_padded_num_slices(tokens, requests)
            return made, again, (*slices, made.get_max_num_seqs())

        self.call(
            f"RaggedPagesCacheMetaData(**{good | fault}), its slices for ({tokens}, {requests})",
            act,
            "CACHE-1",
            lambda made, side: (_shown(made[0], side), _shown(made[1], side), tuple(map(int, made[2]))),
        )


def _shown(metadata: Any, _: Side) -> object:
    """What metadata shows."""
    shape, axes = metadata.get_shape_and_axes()
    dtype = str(np.dtype(metadata.kvdtype))
    return tuple(getattr(metadata, name) for name in _SHOWN), tuple(map(int, shape)), tuple(axes), dtype
