"""The table of what an engine does with a request of its own. The request is one object, which both sides are given."""

from .kinds import NONE, PLAIN
from .method import Method, Table

__all__ = ["REQUEST"]


def _own(name: str, arguments: tuple[str, ...] = (), form: str = "call") -> Method:
    return Method(name, dict.fromkeys(arguments, PLAIN), NONE, "R1", form=form, logged=False)


REQUEST = Table(
    "request",
    "Request",
    (
        _own("Request", ("prompt",), "build"),
        _own("append", ("token_id",)),
        _own("num_computed_tokens", ("value",), "set"),
        _own("status", ("value",), "set"),
        _own("extra_keys", ("value",), "set"),
    ),
)
