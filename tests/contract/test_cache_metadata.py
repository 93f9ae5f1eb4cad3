"""CACHE-1: what caches are made of and how many pages fit; TAB-7: the metadata of steps; SEC-3: their JSON."""

import json
import re
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvproof import spec
from kvproof.spec.clauses import clause_of_message
from kvproof.spec.layout.cache_dtypes import CODES

from ..spec.ragged_batches import i32


def _mesh(**devices: int) -> Any:
    return SimpleNamespace(shape=devices)


# -- Sizing ---------------------------------------------------------------------------------------


def test_cache_1_slots_stay_below_what_an_int32_numbers(package: ModuleType) -> None:
    metadata = package.RaggedPagesCacheMetaData.create(
        None, package.AxisRules(), "f32", 1, 1, 8, 1, page_size=1000, budget_bytes=2**62
    )
    assert metadata.num_pages * 1000 < 2**31 <= (metadata.num_pages + 1) * 1000


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((0.0,), ValueError, "util=0.0"),
        ((1.5,), ValueError, "util=1.5"),
        (("1",), TypeError, "util='1'"),
        ((0.9, "all"), ValueError, "mode='all'"),
        ((0.9, "free", -1), ValueError, "safety_margin=-1"),
    ],
)
def test_r1_a_wrong_budget_is_refused_by_name(
    package: ModuleType, arguments: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=rf"{text}.*\[R1\]"):
        package.per_device_hbm_budget_bytes(*arguments)


# -- The fields and formulas ----------------------------------------------------------------------


def test_the_seeds_formulas(package: ModuleType) -> None:
    metadata = package.RaggedPagesCacheMetaData.create(
        _mesh(tp=2),
        package.AxisRules(),
        "bfloat16",
        2,
        6,
        1000,
        64,
        page_size=16,
        budget_bytes=10**8,
        max_num_tokens=50,
    )
    assert (metadata.is_v2, metadata.is_v3) == (False, True)
    assert metadata._kvdtype_str == "bf16"
    assert metadata.kvdtype == CODES["bf16"]
    assert metadata.kv_head_packing == 2
    assert metadata.storage_head_dim == 128
    assert metadata.storage_num_combined_kv_heads == 2 * 4
    assert metadata.storage_num_kv_groups == 2 * 2
    assert metadata.get_shape_and_axes() == (
        (metadata.num_pages, 16, 4, 2, 128),
        ("pages", None, "kv_heads", None, None),
    )
    assert metadata.max_num_pages_per_req == 63
    assert metadata.get_max_num_seqs() == 1024 * 1024 // 2 // 63 // 4
    assert metadata.num_slices_per_kv_cache_update_page == 64
    assert metadata.get_padded_num_slices() == 64
    assert metadata.get_padded_num_slices(1000, 40) == 192
    assert metadata.replace(max_num_reqs=1, num_slices_per_kv_cache_update_page=2).get_padded_num_slices() == 6
    assert metadata.replace(max_num_tokens=-1).get_padded_num_slices() == 1024
    assert package.RaggedPagesCacheMetaData(1, 8, 1, 8, 8).get_padded_num_slices(3, 1) == 64
    assert package.RaggedPagesCacheMetaData(1, 10**9, 1, 8, 8, page_size=1).get_max_num_seqs() == 1
    assert metadata.replace(version="v2").get_shape_and_axes() == (
        (metadata.num_pages, 16, 12, 128),
        ("pages", None, "kv_heads", None),
    )


def test_another_partition_manager_may_say_how_a_cache_is_split(package: ModuleType) -> None:
    class Rules:
        def resolve(self, axes: Any, mode: str, shape: Any) -> Any:
            assert (mode, len(axes)) == ("decode", len(shape))
            return [("x", "y") if axis == "kv_heads" else None for axis in axes]

    metadata = package.RaggedPagesCacheMetaData.create(_mesh(x=2, y=3), Rules(), "f32", 1, 12, 8, 8, budget_bytes=10**8)
    assert (metadata.num_head_shards, metadata.num_page_shards) == (6, 1)
    named = package.AxisRules(pages=None).resolve(["pages", None, "kv_heads"], "decode", [1, 2, 3])
    assert tuple(named) == (None, None, "tp")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"mesh": object()}, TypeError, "mesh=<object"),
    ({"partition_manager": None}, TypeError, "partition_manager=None"),
    ({"kvdtype": "f64"}, TypeError, "kvdtype='f64'"),
    ({"num_hidden_layers": 0}, ValueError, "num_hidden_layers=0"),
    ({"num_kv_heads": True}, TypeError, "num_kv_heads=True"),
    ({"max_model_length": -1}, ValueError, "max_model_length=-1"),
    ({"kv_head_dim_size": None}, ValueError, "kv_head_dim_size=None"),
    ({"kv_head_dim_size": None, "k_headdim": 8}, ValueError, "v_headdim=None"),
    ({"k_headdim": 0}, ValueError, "k_headdim=0"),
    ({"hbm_utilization": 0.0}, ValueError, "hbm_utilization=0.0"),
    ({"page_size": 0}, ValueError, "page_size=0"),
    ({"version": "v1"}, ValueError, "version='v1'"),
    ({"version": 3}, TypeError, "version=3"),
    ({"budget_bytes": -1}, ValueError, "budget_bytes=-1"),
    ({"budget_bytes": 1e9}, TypeError, "budget_bytes=1000000000.0"),
    ({"budget_bytes": 100}, ValueError, "budget_bytes=100 must hold"),
    ({"max_num_tokens": 0}, ValueError, "max_num_tokens=0"),
    ({"max_num_reqs": -2}, ValueError, "max_num_reqs=-2"),
    ({"slot_scales": True}, ValueError, "slot_scales=True: f32 has no scales"),
    ({"slot_scales": 1}, TypeError, "slot_scales=1"),
    ({"mesh": _mesh(tp=3)}, ValueError, "num_kv_heads=4 must be a multiple of num_head_shards=3"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), WRONG)
def test_r1_a_wrong_argument_is_refused_by_name(
    package: ModuleType, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    given = {
        "mesh": None,
        "partition_manager": package.AxisRules(),
        "kvdtype": "f32",
        "num_hidden_layers": 1,
        "num_kv_heads": 4,
        "max_model_length": 8,
        "kv_head_dim_size": 8,
        "budget_bytes": 10**8,
    }
    with pytest.raises(kind, match=re.escape(text)) as caught:
        package.RaggedPagesCacheMetaData.create(**{**given, **changes})
    assert clause_of_message(str(caught.value)) in spec.CLAUSES


def test_r1_fields_are_checked_wherever_they_come_from(package: ModuleType) -> None:
    metadata = package.RaggedPagesCacheMetaData(1, 8, 1, 8, 8)
    with pytest.raises(ValueError, match="num_pages=1 must be at least 2"):
        metadata.replace(num_pages=1)
    with pytest.raises(ValueError, match=r"num_pages=16777216 .* no int32"):
        metadata.replace(num_pages=2**24)
    with pytest.raises(ValueError, match="num_pages=-1 must be known"):
        metadata.get_shape_and_axes()
    with pytest.raises(ValueError, match="group_page_bytes="):
        package.size_pool(10, [])


# -- Steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (16, (16,)),
        (17, (16, 17)),
        (1000, (16, 63, 250, 1000)),
        (2**20, (1024, 4096, 16384, 65536, 2**18, 2**20)),
    ],
)
def test_tab_7_steps_come_in_few_sizes(package: ModuleType, most: int, sizes: tuple[int, ...]) -> None:
    assert package.MetadataBuilder(1, 1, 1, most).token_sizes == sizes


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((None, [1], [1]), TypeError, "page_table must be a PageTable, not NoneType"),
        (((3, 2, 8), [1], [1]), ValueError, "page_table has (3, 2) entries"),
        ((None, [1, 1], [1]), ValueError, "num_computed_tokens names 2 rows"),
        ((None, [0] * 3, [0] * 3), ValueError, "max_num_reqs=2"),
        ((None, [0], [9]), ValueError, "9 tokens exceed max_num_tokens=8"),
        ((None, [3], [2]), IndexError, "for 4 tokens, not"),
        ((None, [0, 0], [1, 1]), IndexError, "for 0 tokens"),
        ((None, [-1], [1]), ValueError, "num_computed_tokens=-1"),
        ((None, [1], [1.0]), TypeError, "num_scheduled_tokens=1.0"),
        ((None, [True], [1]), TypeError, "num_computed_tokens=True"),
        ((None, ["0"], [1]), TypeError, "num_computed_tokens='0'"),
        ((None, 3, [1]), TypeError, "num_computed_tokens=3"),
        ((None, [2**62], [1]), IndexError, "[TAB-7]"),
    ],
)
def test_r1_a_step_that_can_not_be_is_refused(
    package: ModuleType, arguments: Any, kind: type[Exception], text: str
) -> None:
    table = package.PageTable(2, 2, 8)
    table.add_row([1, 2], 0)
    other = arguments[0] and package.PageTable(*arguments[0])
    with pytest.raises(kind, match=re.escape(text)):
        package.MetadataBuilder(2, 2, 2, 8).build(other if "page_table" in text else table, *arguments[1:])
    assert not table.page_table.any(), "nothing was committed"


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"page_size": 0}, ValueError, "page_size=0"),
        ({"version": "v4"}, ValueError, "version='v4'"),
        ({"token_sizes": []}, ValueError, "token_sizes=[]"),
        ({"token_sizes": [8, 4]}, ValueError, "token_sizes=[8, 4]"),
        ({"token_sizes": [4]}, ValueError, "token_sizes=[4] must ascend to 8 or more"),
        ({"slices": 1}, TypeError, "slices=1"),
    ],
)
def test_r1_a_builder_that_can_not_be_is_refused(
    package: ModuleType, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    given = {"page_size": 2, "max_num_reqs": 2, "max_pages": 2, "max_num_tokens": 8}
    with pytest.raises(kind, match=re.escape(text)):
        package.MetadataBuilder(**{**given, **changes})


def test_cache_5_stacked_metadata_is_taken_apart_again(package: ModuleType) -> None:
    parts = [
        package.RaggedPagesMetadata.create_empty(4, 2, 3, 8, "v2").replace(num_seqs=i32(place)) for place in range(3)
    ]
    stacked = package.RaggedPagesMetadata.stack(iter(parts))
    assert stacked.pages_tables.shape == (6, 3)
    assert [stacked.shard(place, 3).to_dict() for place in range(3)] == [part.to_dict() for part in parts]
    with pytest.raises(ValueError, match=r"pages_tables.shape=\(6, 3\) must be of 4 shards"):
        stacked.shard(0, 4)
    with pytest.raises(ValueError, match=r"shards\[1\] must be like shards\[0\]"):
        package.RaggedPagesMetadata.stack([parts[0], parts[1].replace(position_ids=None)])
    with pytest.raises(ValueError, match=r"shards=\[\]"):
        package.RaggedPagesMetadata.stack([])
    wrong: Any = [None]
    with pytest.raises(TypeError, match=r"shards\[0\]"):
        package.RaggedPagesMetadata.stack(wrong)
    with pytest.raises(ValueError, match="num_tokens=0"):
        package.RaggedPagesMetadata.create_empty(0, 1, 1)


# -- JSON -----------------------------------------------------------------------------------------


def _damaged(document: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "kind", "text"),
    [
        (["format"], 2, ValueError, "no RaggedPagesMetadata of format 1"),
        (["format"], True, ValueError, "of format 1"),
        (["kind"], "RaggedPagesCache", ValueError, "no RaggedPagesMetadata"),
        (["version"], None, ValueError, "data must be an object with the keys"),
        (["class"], "os.system", ValueError, "and no others"),
        (["version"], "v9", ValueError, "version='v9'"),
        (["page_size"], "4", TypeError, "page_size='4'"),
        (["num_seqs"], [1], ValueError, "num_seqs must be an object with the keys"),
        (["num_seqs", "data"], "!", ValueError, "num_seqs.data is no base64"),
        (["num_seqs", "data"], 5, ValueError, "num_seqs.data must be a text"),
        (["num_seqs", "data"], "AAAAAAAA", ValueError, "num_seqs.data has 6 bytes"),
        (["num_seqs", "shape"], [2**39, 2**39], ValueError, "num_seqs.shape must hold sizes"),
        (["num_seqs", "shape"], [2**40], ValueError, "num_seqs.shape must hold sizes"),
        (["num_seqs", "shape"], [-1, -1], ValueError, "num_seqs.shape must have integers in [0,"),
        (["num_seqs", "shape"], [True], ValueError, "num_seqs.shape"),
        (["num_seqs", "dtype"], "object", ValueError, "num_seqs.dtype must be int32"),
        (["num_seqs", "dtype"], "float32", ValueError, "num_seqs.dtype must be int32"),
        (["num_seqs", "dtype"], ["int32"], ValueError, "num_seqs.dtype"),
    ],
)
def test_sec_3_damaged_documents_are_refused(
    package: ModuleType, path: list[str], value: Any, kind: type[Exception], text: str
) -> None:
    document = package.RaggedPagesMetadata.create_empty(1, 1, 1).to_dict()
    with pytest.raises(kind, match=re.escape(text)) as caught:
        package.RaggedPagesMetadata.from_dict(_damaged(document, path, value))
    assert clause_of_message(str(caught.value)) in {*spec.CLAUSES, "SEC-3"}


@pytest.mark.parametrize(
    ("text", "kind"), [("{", ValueError), ("[" * 10**5, ValueError), ("[]", TypeError), (b"{}", TypeError)]
)
def test_sec_3_what_is_no_document_is_refused(package: ModuleType, text: Any, kind: type[Exception]) -> None:
    for parsed in (
        package.RaggedPagesCacheMetaData,
        package.RaggedPagesMetadata,
        package.RaggedPagesCacheView,
        package.RaggedPagesCache,
    ):
        with pytest.raises(kind):
            parsed.from_json(text)
