"""CACHE-1 to CACHE-5, SEC-3, R1: which views and steps are refused, and that nothing is written then."""

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from kvproof import spec
from kvproof.spec.clauses import clause_of_message

PAGE = 3
ROWS = np.random.default_rng(0).normal(size=(6, 2, 8)).astype(np.float32)


def _metadata(package: ModuleType, code: str, heads: int, size: int, **more: Any) -> Any:
    sizes: dict[str, Any] = {"page_size": PAGE, "budget_bytes": 10**8}
    create = package.RaggedPagesCacheMetaData.create
    return create(None, package.AxisRules(), code, 2, heads, 12, None, size, size, **sizes, **more).replace(num_pages=6)


def _view(package: ModuleType, metadata: Any, *more: Any) -> Any:
    return package.RaggedPagesCacheView.init(None, metadata, 0, package.AxisRules(), *more)


def _step(package: ModuleType, pools: int = 1) -> Any:
    """Two sequences, of 4 + 1 and 0 + 3 tokens, in a batch of 6 rows."""
    table = package.PageTable(3, 4, 6)
    table.add_row([4, 1], 0)
    table.add_row([5], 1)
    step = package.MetadataBuilder(PAGE, 3, 4, 6, token_sizes=[6]).build(table, [4, 0], [1, 3])
    return package.RaggedPagesMetadata.stack([step] * pools)


def test_a_quantizer_says_what_is_kept(package: ModuleType) -> None:
    scaled = _metadata(package, "f8_e4m3", 3, 64, slot_scales=True)
    view = _view(package, scaled, package.SlotQuantizer("float8_e4m3fn"))
    assert view.kv_pages.scales.shape == (6, PAGE, 6)
    assert (view.kv_pages.scales == 1).all()
    assert package.SlotQuantizer(np.int8)(np.zeros((2, 1, 4, 128), np.int8)).scales.shape == (2, 1, 4)
    assert package.SlotQuantizer(np.int8)(np.zeros((2, 1, 2, 4, 128), np.int8), 3).scales.shape == (2, 1, 6)
    plain = _metadata(package, "f8_e4m3", 3, 64)
    with pytest.raises(ValueError, match=r"slot_scales=False.*\[CACHE-1\]"):
        _view(package, plain, package.SlotQuantizer("f8_e4m3"))
    with pytest.raises(ValueError, match=r"kv_pages must be float8_e4m3fn.*\[CACHE-1\]"):
        _view(package, plain, lambda pages: pages[1:])
    with pytest.raises(TypeError, match=r"int8.*\[R1\]$"):
        _view(package, plain, package.SlotQuantizer("int8"))
    with pytest.raises(ValueError, match=r"dtype='?bf16'? has no scales.*\[CACHE-4\]"):
        package.SlotQuantizer("bf16")
    with pytest.raises(TypeError, match=r"\[R1\]$"):
        package.SlotQuantizer("f64")


Made = Callable[[ModuleType], tuple[Any, ...]]

NO_VIEWS: dict[str, tuple[Made, type[Exception], str]] = {
    "heads of one device on two": (
        lambda package: (jax.make_mesh((2,), ("tp",)), _metadata(package, "f32", 2, 8), 0, package.AxisRules()),
        ValueError,
        "num_head_shards=1",
    ),
    "pages of one device on two": (
        lambda package: (jax.make_mesh((2,), ("dp",)), _metadata(package, "f32", 2, 8), 0, package.AxisRules()),
        ValueError,
        "num_page_shards=1",
    ),
}


@pytest.mark.parametrize("fault", NO_VIEWS)
def test_r1_a_view_that_can_not_be_is_refused(package: ModuleType, fault: str) -> None:
    made, kind, text = NO_VIEWS[fault]
    arguments = made(package)
    with pytest.raises(kind, match=re.escape(text)) as caught:
        package.RaggedPagesCacheView.init(*arguments)
    assert clause_of_message(str(caught.value)) in spec.CLAUSES


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another page size": ({"cache_metadata": lambda step: step.replace(page_size=4)}, ValueError, "page_size=4"),
    "two pools": ({"cache_metadata": lambda step: type(step).stack([step] * 2)}, ValueError, "(2,)"),
    "lengths of int64": (
        {"cache_metadata": lambda step: step.replace(context_lens=np.zeros(3, np.int64))},
        TypeError,
        "int64",
    ),
    "a scale below 0": ({"k_scale": -1.0}, ValueError, "k_scale=-1.0"),
    "queries of another size": ({"queries": ROWS[..., :4]}, ValueError, "queries.shape"),
    "sinks of another length": ({"sinks": np.zeros(3, np.float32)}, ValueError, "sinks.shape=(3,)"),
    "sinks of float64": ({"sinks": np.zeros(2, np.float64)}, TypeError, "sinks"),
    "a window of 0": ({"window": 0}, ValueError, "window=0"),
    "a flag for a number": ({"soft_cap": True}, TypeError, "soft_cap"),
    "an array for a number": ({"scale": np.ones(2)}, TypeError, "scale"),
    "an option that there is not": ({"windows": 3}, TypeError, "windows"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_r1_a_wrong_step_is_refused_by_name_and_nothing_written(package: ModuleType, fault: str) -> None:
    changes, kind, text = WRONG[fault]
    view = _view(package, _metadata(package, "f32", 2, 8))
    step = _step(package)
    changes = {name: change(step) if callable(change) else change for name, change in changes.items()}
    given = {"queries": ROWS, "key": ROWS, "value": ROWS, "cache_metadata": step, **changes}
    before = np.asarray(view.kv_pages).tobytes()
    with pytest.raises(kind, match=re.escape(text)):
        view.update_and_attend(**given)
    if changes.keys() <= {"key", "value", "cache_metadata", "k_scale"} and fault != "lengths of int64":
        with pytest.raises(kind, match=re.escape(text)):
            view.concatenate_to_cache(**{name: value for name, value in given.items() if name != "queries"})
    assert np.asarray(view.kv_pages).tobytes() == before, "neither written nor given away"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda view: view["metadata"].update(num_pages=7), "kv_pages"),
        (lambda view: view["metadata"].update(num_kv_heads=3), "kv_pages"),
        (lambda view: view.update(kv_pages=view["kv_pages"]["values"]), "slot_scales=True"),
        (lambda view: view["kv_pages"].pop("scales"), "kv_pages"),
        (lambda view: view.update(partition_manager={"pages": 1, "kv_heads": None}), "partition_manager.pages"),
        (lambda view: view.update(partition_manager=None), "partition_manager"),
        (lambda view: view["kv_pages"]["scales"].update(dtype="int32"), "kv_pages.scales.dtype must be"),
        (lambda view: view["kv_pages"]["values"].update(dtype="float64"), "kv_pages.values.dtype must be"),
        (lambda view: view["kv_pages"]["values"].update(shape=[0, 2**40], data=""), "kv_pages.values.shape must hold"),
        (lambda view: view["kv_pages"]["values"].update(shape=[0] * 9, data=""), "kv_pages.values.shape must"),
        (lambda view: view["metadata"].update(format=0), "no RaggedPagesCacheMetaData of format 1"),
        (lambda view: view.update(format=0), "no RaggedPagesCacheView of format 1"),
    ],
)
def test_sec_3_damaged_views_are_refused(package: ModuleType, change: Any, text: str) -> None:
    document = _view(package, _metadata(package, "int8", 4, 8)).to_dict()
    change(document)
    with pytest.raises(ValueError, match=rf"{re.escape(text)}.*\[SEC-3\]$"):
        package.RaggedPagesCacheView.from_dict(document)


def test_sec_3_a_cache_is_of_all_its_layers_in_order(package: ModuleType) -> None:
    document = package.RaggedPagesCache.init_cache(None, _metadata(package, "f32", 1, 8), package.AxisRules()).to_dict()
    for views, text in ((document["views"][::-1], "layers of one cache, in order"), ({}, "views must be a list")):
        with pytest.raises(ValueError, match=text):
            package.RaggedPagesCache.from_dict(document | {"views": views})


def test_a_partition_manager_of_others_is_not_saved(package: ModuleType) -> None:
    class Rules:
        def resolve(self, axes: Any, mode: str, shape: Any) -> Any:
            return package.AxisRules().resolve(axes, mode, shape)

    view = package.RaggedPagesCacheView.init(None, _metadata(package, "f32", 1, 8), 0, Rules())
    with pytest.raises(TypeError, match="partition_manager must be AxisRules"):
        view.to_dict()
