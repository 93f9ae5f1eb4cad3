"""Features that have met: which two of them were at work in one scene of a machine."""

from collections import Counter
from collections.abc import Iterable
from itertools import combinations

__all__ = ["FEATURES", "PAIRS", "SAFE_PAIRS", "Meetings", "pair"]

FEATURES = {
    "hit": "a request begins behind what is cached",
    "keys": "a request with extra keys: a salt, or items in place of tokens",
    "amid": "a request that begins amid a page, the first tokens of which are copied",
    "many": "hundreds of requests at once",
    "batch": "a step of many requests in one call",
    "mirror": "a look-up of what a live request holds, right after a call that may put work off",
    "lookahead": "slots beyond what is computed",
    "delay": "pages that are published late",
    "rewind": "drafts that are rejected",
    "withdraw": "a request that goes before its step was written",
    "evict": "pages whose hashes are dropped",
    "reset": "all prefixes are forgotten",
    "pin": "a pinned prefix",
    "priority": "a prefix that is ranked",
    "swap": "a request that goes to host memory and comes back",
    "restore": "a manager that is made from a snapshot",
    "events": "events that are taken in batches",
    "export": "a prefix that is exported",
    "import": "pages that come from elsewhere",
    "together": "prompts of one step, each looked up before any of them is given slots",
    "shards": "requests that are placed on one of several shards",
}
"""What of a manager can meet, with what each is."""

_SCENE = 40
"""Two features meet where no more steps than these lie between them."""


def pair(one: str, other: str) -> str:
    """The name of two features that have met, by which draws count them."""
    return "met: " + " + ".join(sorted((one, other), key=list(FEATURES).index))


_OF_ONE_MANAGER = ("batch", "pin", "priority", "restore", "events", "export", "import")
"""What a manager of several shards does not have: it has no such methods."""

PAIRS = tuple(
    pair(one, other) for one, other in combinations(FEATURES, 2) if other != "shards" or one not in _OF_ONE_MANAGER
)
"""Every two features that can meet."""

SAFE_PAIRS = tuple(name for name in PAIRS if name not in {pair("amid", other) for other in FEATURES})
"""Those at level safe, where hits of long lives end with a page; see `SafeSoak.left_out`."""


class Meetings:
    """Which features have met in one life."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._met: Counter[str] = Counter()

    def note(self, features: Iterable[str], place: int) -> None:
        """Notes features that were at work in a step, with the step's place."""
        for feature in (feature for feature in features if feature in FEATURES):
            for other, last in self._last.items():
                if other != feature and place - last <= _SCENE:
                    self._met[pair(feature, other)] += 1
            self._last[feature] = place

    def names(self) -> list[str]:
        """The pairs that have met, each as often as it did."""
        return list(self._met.elements())
