"""R1: objects that can't be copied or pickled, since a copy would allocate the same pages or write the same rows."""

from typing import NoReturn

from .reading import refusal

__all__ = ["Uncopied"]


class Uncopied:
    """Refuses `copy.copy`, `copy.deepcopy` and `pickle`, which all call ``__reduce_ex__``.

    Original and copy would have the same pages: each would allocate pages that the other has in use. A manager is
    moved by `CacheManager.snapshot` and `CacheManager.restore` (MAN-14).
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
