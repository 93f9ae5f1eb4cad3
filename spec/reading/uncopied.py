"""R1: what is not copied: a second object that would hand out the same pages, or write the same rows."""

from typing import NoReturn

from .arguments import refusal

__all__ = ["Uncopied"]


class Uncopied:
    """Refuses `copy.copy`, `copy.deepcopy` and `pickle`, which all ask for ``__reduce_ex__``.

    A copy would go on with pages that are the first one's: each of the two would hand out what the other has in use. A
    manager is taken along by `CacheManager.snapshot` and `CacheManager.restore` (MAN-14).
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        del protocol
        raise refusal(
            TypeError,
            "R1",
            f"{type(self).__name__} is not copied or pickled: two would have the same pages; CacheManager.snapshot "
            f"and restore take a manager along",
        )
