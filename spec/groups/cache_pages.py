"""Pages of one request by cache group, as the manager and a scheduler exchange them."""

from ..declarations.page_calls import PagesByGroup
from ..pool.pages import PageList

__all__ = ["CachePages"]


class CachePages(PagesByGroup[PageList]):
    """Pages of one request, a list for each cache group, as the manager and a scheduler exchange them.

    Args:
        pages: one list of pages a group.
    """

    __slots__ = ()

    _list_of = PageList
