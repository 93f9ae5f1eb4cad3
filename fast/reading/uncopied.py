"""R1: refusing copies of objects whose copy would hand out the same pages, or write the same rows."""

from typing import NoReturn

from .arguments import refusal

__all__ = ["Uncopied"]


class Uncopied:
    """Refuses `copy.copy`, `copy.deepcopy` and `pickle`, which all call ``__reduce_ex__``.

    Original and copy would each allocate pages that the other has in use. `CacheManager.snapshot` and
    `CacheManager.restore` (MAN-14) move a manager to another process.
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
