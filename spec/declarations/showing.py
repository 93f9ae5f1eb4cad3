"""How objects are printed: one line that says what a person asks first, and the same as a table in a notebook.

Only numbers and public names of options are shown, no tokens, ids, keys or salts (SEC-2).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .uncopied import Uncopied

__all__ = [
    "Shown",
    "ShownBuilder",
    "ShownBuilders",
    "ShownCache",
    "ShownFollower",
    "ShownManager",
    "ShownPool",
    "ShownQueue",
    "ShownShards",
    "ShownTable",
    "ShownTables",
    "ShownView",
]


class Shown:
    """Is printed by what `_facts` says."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        """What is shown, by what it is called; counts stand before their names."""
        raise NotImplementedError

    def __repr__(self) -> str:
        try:
            facts = self._facts()
        except AttributeError:  # its constructor has not ended, or a class that extends it has other attributes
            return object.__repr__(self)
        shown = (f"{value} {name}" if type(value) is int else f"{name} {value}" for name, value in facts.items())
        return f"<{type(self).__name__}: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """The same as a table, which notebooks show."""
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._facts().items())
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def _use(pool: Any) -> dict[str, object]:
    """How many pages there are but for the null page, and how many are in use."""
    pages = pool.num_pages - 1
    return {"pages in use": _share(pages - pool.get_num_free_pages(), pages)}


class ShownPool(Shown, Uncopied):
    """A page pool: its pages, how many are in use, how it evicts. O(1)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        pool: Any = self
        return {**_use(pool), "eviction": pool.eviction if pool.enable_caching else "none, as caching is off"}


class ShownManager(Shown, Uncopied):
    """A manager: its pages, how many are in use, its groups, what it admitted and hit. O(groups)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        manager: Any = self
        counters, host = manager.counters, manager.num_host_pages
        hosts = {"host pages in use": _share(host - manager.num_free_host_pages, host)} if host else {}
        return {
            **_use(manager.page_pool),
            **hosts,
            "groups": manager.num_kv_cache_groups,
            "requests admitted": counters.requests,
            "tokens hit": _share(counters.hit_tokens, counters.queried_tokens),
        }


class ShownShards(Shown, Uncopied):
    """A manager of shards: how many there are, and each one's use. O(shards)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        shards: Any = self
        return {
            f"shard {place} pages in use": _use(shard.page_pool)["pages in use"]
            for place, shard in enumerate(shards.shards)
        }


class ShownTable(Shown, Uncopied):
    """A page table: its rows, how many hold pages, how long they may be. O(rows)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        table: Any = self
        held = sum(1 for count in table.num_pages_per_row if count)
        return {"rows in use": _share(held, table.max_num_reqs), "pages a row at most": table.max_num_pages_per_req}


class ShownTables(Shown, Uncopied):
    """The page tables of several groups: how many there are, and each one's rows. O(groups * rows)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        tables: Any = self
        shown = {
            f"group {group} rows in use": table._facts()["rows in use"]
            for group, table in enumerate(tables.page_tables)
        }
        return {"groups": len(shown), **shown}


class ShownCache(Shown):
    """The cache of a model: layers, pages, slots, element type, layout, bytes. O(1)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        cache: Any = self
        metadata = cache.metadata
        if metadata is None:
            return {"layers": 0}
        return {"layers": metadata.num_hidden_layers, **_stored(metadata)}


class ShownView(Shown):
    """The pages of one layer: which one it is, and what `ShownCache` says of them. O(1)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        view: Any = self
        return {"layer": f"{view.layer_index} of {view.metadata.num_hidden_layers}", **_stored(view.metadata)}


def _stored(metadata: Any) -> dict[str, object]:
    """How many pages a layer has, and what they hold."""
    return {
        "pages": metadata.num_pages * metadata.num_page_shards,
        "slots a page": metadata.page_size,
        "of": f"{metadata.kvdtype.name}, layout {metadata.version}",
    }


class ShownBuilder(Shown):
    """What builds the arrays of steps: the sizes that it takes and gives. O(1)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        builder: Any = self
        return {
            "rows": builder.max_num_reqs,
            "pages a row at most": builder.max_pages,
            "tokens a page": builder.page_size,
            **_steps(builder.max_num_tokens, builder.token_sizes),
        }


class ShownBuilders(Shown):
    """The builders of several groups: how many there are, and each one's pages. O(groups)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        own: Any = self
        first = own.builders[0]
        sizes = ", ".join(str(builder.page_size) for builder in own.builders)
        steps = _steps(first.max_num_tokens, first.token_sizes)
        return {"groups": len(own.builders), "rows": first.max_num_reqs, "tokens a page": f"by group {sizes}", **steps}


def _steps(most: int, sizes: Sequence[int]) -> dict[str, object]:
    """How many tokens a step has."""
    return {"tokens a step at most": most, "padded to": " or ".join(map(str, sizes))}


class ShownQueue(Shown, Uncopied):
    """A free queue: how many pages are in it. O(1)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        queue: Any = self
        return {"free pages": queue.num_free_pages}


class ShownFollower(Shown):
    """A follower of events: how many pages it knows as cached. O(cached pages)."""

    __slots__ = ()

    def _facts(self) -> Mapping[str, object]:
        follower: Any = self
        return {"cached pages": sum(map(len, follower.cached_page_hash_to_page.values()))}
