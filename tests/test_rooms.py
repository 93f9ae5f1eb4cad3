"""The rooms of spec and fast: the same folders in both, each file beside its twin, or with a reason why it has none."""

import ast
import functools
import re
from collections import defaultdict
from itertools import product
from pathlib import Path

import pytest

from kvproof import fast, spec
from kvproof.spec import CLAUSES

from .test_layout import MODULES, ROOT, _circle, _imports, _module_of

PACKAGES = ("spec", "fast")

MOST_REACHES = 3
"""The most reaches into another object's private attributes in a package."""

ALONE = {
    # -- spec --------------------------------------------------------------------------------------
    "spec/clauses": "the sentences of the contract stand once",
    "spec/attention/attention": "fast calls kernels",
    "spec/attention/attention_batch": "fast calls kernels",
    "spec/attention/mla": "fast calls kernels",
    "spec/layout/cache_dtypes": "fast calls kernels",
    "spec/layout/cache_update": "fast calls kernels",
    "spec/layout/open_pages": "fast calls kernels",
    "spec/layout/states": "fast calls kernels",
    "spec/cache/cache_parts": "fast leaves the parts of a split cache to jax.shard_map",
    "spec/groups/group_fields": "fast reads a group's declaration in groups/group_rules",
    "spec/groups/request_keys": "fast finds prefixes by their tokens and keeps no keys of requests",
    "spec/step/demand": "fast reads a single call in manager/steps, a batched one in step/step_reading",
    # -- fast --------------------------------------------------------------------------------------
    "fast/reading/tokens": "tokens as bytes, which the index compares",
    "fast/reading/extra_keys": "extra keys over pages, as the index compares them",
    "fast/reading/request_reading": "spec reads requests in groups/live_requests",
    "fast/index/index_check": "the index is fast's own: spec has a dict",
    "fast/index/joining": "the index is fast's own: spec has a dict",
    "fast/index/parts": "the index is fast's own: spec has a dict",
    "fast/index/prefix_index": "the index is fast's own: spec has a dict",
    "fast/index/runs": "the index is fast's own: spec has a dict",
    "fast/pool/ghosts": "the contents evicted lately as an array; a dict of eviction in spec",
    "fast/pool/free_log": "the free pages of one priority as an array; part of free_order in spec",
    "fast/pool/page_log": "the queues of an eviction policy as arrays; dicts of eviction in spec",
    "fast/pool/retained_log": "the free pages of second class as an array; part of free_order in spec",
    "fast/pool/sampling": "the ages of pages in arrays; part of pool_log in spec",
    "fast/groups/cache_group": "columns of live requests; dicts in spec's coordinator",
    "fast/groups/coordinator_kinds": "the seeds' four names for one coordinator; beside it in spec",
    "fast/groups/longest_hit": "part of coordinator in spec",
    "fast/groups/page_copies": "part of coordinator in spec",
    "fast/groups/page_lists": "page lists in one array; lists in spec",
    "fast/groups/publishing": "part of coordinator in spec",
    "fast/step/batched_publishing": "a batched step by columns; single calls in spec",
    "fast/step/batched_step": "a batched step by columns; single calls in spec",
    "fast/step/growth": "a batched step by columns; single calls in spec",
    "fast/step/small_step": "a batched step by columns; single calls in spec",
    "fast/step/step_reading": "a batched step by columns; single calls in spec",
    "fast/table/slots": "part of page_table in spec",
    "fast/table/table_lag": "what the device lacks; spec's device copy is an array of the host's",
    "fast/saved/event_stream": "sends and receives what both packages make and follow",
    "fast/cache/cache_programs": "compiled programs; spec computes at once",
    "fast/cache/host_arrays": "arrays of a device on the host; spec's are there",
    "fast/cache/page_copies": "padding for compiled programs, checks of imported pages; layout/states in spec",
    "fast/cache/view_arguments": "reading/arguments and attention/attention_batch in spec",
}
"""The modules that have no twin, each with the reason."""


def _places(package: str) -> set[str]:
    """Where the modules of a package stand in it."""
    root = ROOT / package
    return {
        str(path.relative_to(root).with_suffix(""))
        for path in MODULES
        if path.is_relative_to(root) and path.stem != "__init__"
    }


def test_every_module_has_its_twin_or_a_reason() -> None:
    """Declarations have none: they stand once, for both."""
    spec, fast = {place for place in _places("spec") if not place.startswith("declarations/")}, _places("fast")
    alone = {f"spec/{place}" for place in spec - fast} | {f"fast/{place}" for place in fast - spec}
    assert alone == ALONE.keys()


def test_modules_stand_in_rooms() -> None:
    """At the top of a package are the sentences of the contract, or the ways into the suite, and nothing else."""
    assert {place for package in PACKAGES for place in _places(package) if "/" not in place} == {"clauses"}
    ways_in = {"__main__", "cli", "pytest_plugin", "test_conformance"}
    assert {place for place in _places("conformance") if "/" not in place} == ways_in
    files = {file.name for file in (ROOT / "conformance").iterdir() if file.is_file()}
    assert files == {"__init__.py", *(f"{place}.py" for place in ways_in)}


@pytest.mark.parametrize(
    ("package", "grain"), [*product(PACKAGES, ["room", "module"]), ("conformance", "room")], ids="-".join
)
def test_nothing_imports_itself_in_a_circle(package: str, grain: str) -> None:
    """No room and no module does, not even by what only type checkers or functions import."""
    part = _room if grain == "room" else _place
    graph: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        if not path.is_relative_to(ROOT / package) or path.stem == "__init__":
            continue
        for name in _imports(path):
            other = _module_of(name)
            if other is not None and other.startswith(f"kvproof.{package}."):
                graph[part(path)].add(part(ROOT.joinpath(*other.split(".")[1:])))
        graph[part(path)].discard(part(path))
    found = {name: others & graph.keys() for name, others in graph.items()}
    assert sum(map(len, found.values())) > len(found), "the imports were found"
    assert _circle(found) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_privates_are_left_to_their_owner(package: str) -> None:
    """Reaches into another object's private attributes are few, in all of a package."""
    attributes = [
        node
        for path in MODULES
        if path.is_relative_to(ROOT / package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    ]
    reaches = [ast.unparse(node) for node in attributes if ast.unparse(node.value) not in ("self", "cls")]
    assert len(attributes) > 200, "they were found"
    assert len(reaches) <= MOST_REACHES, reaches


def test_a_manager_shows_the_same_parts_in_both_packages() -> None:
    """It is made of them, over one pool: no class in between that is one of them by inheritance."""
    for package in (spec, fast):
        manager = package.CacheManager(4, [], 8)
        parts = [manager.page_pool, manager.coordinator, manager.prefixes, manager.swaps, manager.steps]
        names = [type(part).__name__ for part in parts]
        assert names == ["PagePool", "CacheCoordinatorNoPrefixCache", "Prefixes", "Swaps", "Steps"]
        assert all(not isinstance(manager, type(part)) for part in parts)
        assert manager.coordinator.page_pool is manager.page_pool


def _room(path: Path) -> str:
    """The room in which a module stands."""
    return path.relative_to(ROOT).parts[1]


def _place(path: Path) -> str:
    """Where a module stands."""
    return str(path.relative_to(ROOT).with_suffix(""))


def test_a_class_stands_where_its_name_says() -> None:
    for package in PACKAGES:
        for place, name in (
            ("pool/page_pool", "PagePool"),
            ("table/page_table", "PageTable"),
            ("table/multi_group_table", "MultiGroupPageTable"),
            ("manager/cache_manager", "CacheManager"),
            ("manager/sharded_manager", "ShardedCacheManager"),
            ("cache/cache_view", "RaggedPagesCacheView"),
            ("cache/ragged_cache", "RaggedPagesCache"),
            ("cache/metadata_builder", "MetadataBuilder"),
        ):
            text = (ROOT / package / f"{place}.py").read_text()
            assert re.search(rf"^class {name}\b", text, re.MULTILINE), f"{package}/{place}: {name}"


def test_the_reading_order_names_what_is_there() -> None:
    """Each file, room and clause that the specification's page names exists; it names every room."""
    text = (ROOT / "spec" / "README.md").read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)?[a-z_]+\.py|[a-z_]+/)`", text))
    rooms = {f"{_room(path)}/" for path in MODULES if path.is_relative_to(ROOT / "spec") and path.parent.name != "spec"}
    places = {f"{place}.py" for place in _places("spec")}
    assert rooms <= named <= rooms | places | {place.split("/")[-1] for place in places}
    assert set(re.findall(r"\b[A-Z]{2,5}-\d+\b", text)) <= CLAUSES.keys()


def _attributes(node: ast.AST) -> list[str]:
    """The names behind ``fast`` in an expression like ``fast.pool.pages.page_list``; none in any other."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return names if isinstance(node, ast.Name) and node.id == "fast" else []


def test_what_the_seeded_bugs_name_is_there() -> None:
    """They reach into fast when they run: a module that has moved would make of each an ``AttributeError``."""
    named = {
        tuple(names)
        for path in (ROOT / "conformance" / "catalogue").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (names := _attributes(node))
    }
    assert len(named) > 20, "they were found"
    for path_in_fast in named:
        functools.reduce(getattr, path_in_fast, fast)


def test_a_class_name_of_the_specification_means_one_thing() -> None:
    names = [
        name
        for path in MODULES
        if path.is_relative_to(ROOT / "spec")
        for name in re.findall(r"^class _?(\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(names) > 50, "the classes were found"
    assert {name for name in names if names.count(name) > 1} == set()
