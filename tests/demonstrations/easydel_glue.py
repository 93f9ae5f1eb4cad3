"""EasyDeL 0.3.0 with kvproof's manager and tables in place of its own: what a user writes; EasyDeL stays as it is."""

import dataclasses
from typing import Any

from easydel.inference.esurge import request as requests  # type: ignore[import-not-found]
from easydel.inference.esurge.runners import sequence_buffer  # type: ignore[import-not-found]
from easydel.inference.esurge.scheduler import scheduler  # type: ignore[import-not-found]

from kvproof import fast
from kvproof.spec import MultimodalItem

__all__ = ["Manager", "swap"]


class Manager:
    """A manager of ours, called as EasyDeL's scheduler calls its own."""

    names: Any = fast

    def __init__(self, num_pages: int, kv_cache_groups: list[Any], *arguments: Any, **options: Any) -> None:
        groups = [self.names.CacheGroupSpec(_declared(group.kv_cache_spec)) for group in kv_cache_groups]
        self.ours = self.names.CacheManager(num_pages, groups, *arguments, **options)

    def get_computed_pages(self, request: Any, **shards: Any) -> Any:
        """As ours, which is one shard's."""
        _refuse_shards(**shards)
        return self.ours.get_computed_pages(request)

    def allocate_slots(self, request: Any, *arguments: Any, **options: Any) -> Any:
        """As ours, which is one shard's."""
        _refuse_shards(options.pop("dp_shard_hint", None), options.pop("data_parallel_size", 1))
        return self.ours.allocate_slots(request, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name == "ours":  # `__init__` has not run, or was refused: looking it up again would never end
            raise AttributeError(f"{type(self).__name__} was not made: it has no manager")
        return getattr(self.ours, name)


def _refuse_shards(dp_shard_hint: int | None = None, data_parallel_size: int | None = 1) -> None:
    """Shards have a pool each (POOL-12, `fast.ShardedCacheManager`); EasyDeL's have ranges of one pool's ids."""
    if dp_shard_hint is not None:
        raise ValueError(f"dp_shard_hint={dp_shard_hint} of {data_parallel_size}: a pool is one shard's [POOL-12]")


def _declared(theirs: Any) -> Any:
    """A kind of cache group by our class of its name, whose fields are the same but for the dtypes of states."""
    ours = getattr(fast, type(theirs).__name__)
    given = vars(theirs) | {"dtypes": (theirs.dtype,) * len(getattr(theirs, "shapes", ()))}
    return ours(**{field.name: given[field.name] for field in dataclasses.fields(ours) if field.name in given})


def _extra_keys(request: Any) -> tuple[MultimodalItem, ...]:
    """A request's images and clips, by content and place (HASH-2); the whole prompt where the place is not known."""
    items = []
    for item in request.mm_features:
        place = item.placeholder_range
        offset, length = (place.offset, place.length) if place else (0, request.num_prompt_tokens)
        items.append(MultimodalItem(f"{item.modality} {item.mm_hash}".encode(), offset, length))
    return tuple(items)


def swap() -> None:
    """From here on EasyDeL's schedulers and sequence buffers make ours."""
    requests.EngineRequest.extra_keys = property(_extra_keys)
    scheduler.CacheManager = Manager
    sequence_buffer.MultiGroupPageTable = Manager.names.MultiGroupPageTable
