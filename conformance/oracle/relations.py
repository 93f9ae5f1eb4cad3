"""The table of relations: ways to ask one question twice, each a small generator of scripts with a clause of its own.

Every script asks something in a way that an engine's cache, batches or schedule could spoil, and then plainly, alone
and cold. `consistency` compares all answers of a script; so a relation only says what is asked.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from .scripts import Ask, Forget, Reset, Script, Step, Wave
from .subjects import Facts

__all__ = ["LENGTH", "RELATIONS", "Relation", "Sizes", "draw_prompt"]

LENGTH = 2048
"""The most tokens of a request, where an engine does not say and answers long ones."""

_LONG = 512
"""Tokens of prompts that are to fill the pages, where the engine takes as many."""

_LEAST = 4
"""Answers of fewer tokens are too short to be cut around a place amid them."""

_SHORT_POSITIONS = 1 << 15
"""Positions of 16 bits end here."""

_NEAR_SALTS = (("tenant 1", "tenant 2"), ("tenant 1", "tenant"), ("one", "two"), ("tenant 1", "Tenant 1"))
"""Pairs of cache salts that are the same up to a last character, a length or a case, and one that is not."""


@dataclass(frozen=True)
class Sizes:
    """How long prompts and answers are.

    Attributes:
        page: tokens in a page.
        answer: the most tokens of an answer.
        longest: the most tokens of a prompt.
        low: the least token id of a prompt.
        vocabulary: token ids of prompts are below it.
        chunk: the most tokens of a step; 0 where it is not known.
        window: positions that a window or chunk of attention spans; 0 where it is not known.
        pool: tokens that all pages hold; 0 where it is not known.
        adapters: the names of adapters.
        offers: what the engine offers, words of `CAPABILITIES`, and ``forgets`` where there is a way to ask cold.
    """

    page: int
    answer: int
    longest: int
    low: int
    vocabulary: int
    chunk: int = 0
    window: int = 0
    pool: int = 0
    adapters: tuple[str, ...] = ()
    offers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, facts: Facts) -> "Sizes":
        """The sizes for an engine."""
        length = facts.max_model_len or LENGTH
        answer = max(1, min(8, length // 4))
        return cls(
            page=facts.page_size,
            answer=answer,
            longest=max(1, length - answer),
            low=min(facts.vocab_size // 10, 100),
            vocabulary=facts.vocab_size,
            chunk=facts.chunk,
            window=facts.window,
            pool=facts.pool,
            adapters=facts.adapters,
            offers=_offered(facts),
        )

    @property
    def middle(self) -> int:
        """The length of a prompt of some pages and a part of one."""
        return self.fitting(2 * self.page + self.page // 2 + 1)

    @property
    def long(self) -> int:
        """The length of a prompt that fills many pages."""
        return self.fitting(_LONG)

    def fitting(self, length: int) -> int:
        """The nearest length that a prompt can have."""
        return max(1, min(length, self.longest))


def _offered(facts: Facts) -> frozenset[str]:
    """What an engine offers, any way to ask cold included."""
    return facts.offers | ({"forgets"} if facts.forgets else set())


def draw_prompt(draw: random.Random, sizes: Sizes, length: int) -> tuple[int, ...]:
    """A prompt of some length."""
    return tuple(draw.randrange(sizes.low, sizes.vocabulary) for _ in range(sizes.fitting(length)))


@dataclass(frozen=True)
class Relation:
    """A way to ask twice.

    Attributes:
        clause: the clause that a contradiction breaks.
        name: what it is called in reports.
        draw: draws a script, the number of the round given.
        needs: what an engine has to offer, words of `CAPABILITIES`; ``forgets`` for any way to ask cold. Of several
            words in one, joined by a bar, one is enough.
        every_length: whether there is a script for each number of tokens of a page.
    """

    clause: str
    name: str
    draw: Callable[[random.Random, Sizes, int], Script]
    needs: tuple[str, ...] = ()
    every_length: bool = False

    def lacks(self, facts: Facts) -> list[str]:
        """What an engine lacks for it."""
        return [words for words in self.needs if not _offered(facts) & set(words.split("|"))]


RELATIONS: dict[str, Relation] = {}
"""The relations by name, in the order in which they are looked at: what is simple comes first."""

_Draw = Callable[[random.Random, Sizes, int], Iterator[Step]]


def _relation(clause: str, name: str, *needs: str, every_length: bool = False) -> Callable[[_Draw], _Draw]:
    def enter(draw: _Draw) -> _Draw:
        def script(chance: random.Random, sizes: Sizes, number: int) -> Script:
            return Script(tuple(draw(chance, sizes, number)))

        RELATIONS[name] = Relation(clause, name, script, needs, every_length)
        return draw

    return enter


def _alone(name: str, prompt: tuple[int, ...], sizes: Sizes) -> Wave:
    return Wave((Ask(name, prompt),), sizes.answer)


def _some_length(draw: random.Random, sizes: Sizes) -> int:
    """A length at which something may end, or one beside it."""
    ends = [sizes.page, 2 * sizes.page, 3 * sizes.page, sizes.window, sizes.chunk, sizes.window + sizes.page]
    around = [end + by for end in ends if end for by in (-1, 0, 1)]
    return sizes.fitting(draw.choice([*around, sizes.middle, sizes.middle]))


@_relation("ENG-3", "warm")
def _warm(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """The same request again: its pages are cached, of three prompts all of one, and all but a token of another."""
    whole = sizes.page * draw.randint(1, 3)
    lengths = _some_length(draw, sizes), whole + 1, whole
    prompt = draw_prompt(draw, sizes, lengths[number % 3])
    for name in "abc":
        yield _alone(name, prompt, sizes)


@_relation("ENG-4", "prefix", "forgets", every_length=True)
def _prefix(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A request that shares its first tokens with two earlier ones, any number of them, and may hardly differ behind.

    Two, as a cache of windows or states may keep what a hit needs only where it has seen two requests part (RET-2).
    """
    shared = sizes.page * draw.randint(0, 3) + number % sizes.page
    first = draw_prompt(draw, sizes, shared + max(2, sizes.middle // 2) + draw.choice((0, 0, 2 * sizes.page)))
    place = min(shared, len(first) - 1)
    tail = first[place:]
    yield _alone("a", first, sizes)
    yield _alone("b", (*first[:place], *draw_prompt(draw, sizes, len(tail))), sizes)
    if number % 4 == 1:
        third = (*first[:place], *draw_prompt(draw, sizes, len(tail)))
    else:
        third = (*first[:place], *_near(draw, tail, sizes, 1 if number % 2 else number // 2 % 3))
        yield _alone("m", (*first[:-1], *draw_prompt(draw, sizes, 1)), sizes)  # what lies behind the place is kept, too
    yield _alone("c", third, sizes)
    yield Forget()
    yield _alone("d", third, sizes)


def _near(draw: random.Random, tokens: tuple[int, ...], sizes: Sizes, way: int) -> tuple[int, ...]:
    """A text that differs in its first page by what a key may lose: the highest or lowest bit of a token, or the order.

    The token is the first of those with which the bit can be turned, as what comes of it is one of a prompt as well.
    """
    changed, page = list(tokens), tokens[: sizes.page]
    turned = [place for place, token in enumerate(page) if token != page[0]]
    bits = range(sizes.vocabulary.bit_length())
    others = [(bit, -place) for bit in bits for place, token in enumerate(page) if _is_drawn(token ^ 1 << bit, sizes)]
    if way == 2 and turned:
        changed[0], changed[turned[0]] = changed[turned[0]], changed[0]
    elif others:
        bit, place = max(others, key=lambda pair: (-pair[0] if way else pair[0], pair[1]))
        changed[-place] ^= 1 << bit
    else:
        changed[0] = draw.randrange(sizes.low, sizes.vocabulary)
    return tuple(changed)


def _is_drawn(token: int, sizes: Sizes) -> bool:
    """Whether a token is one of those that prompts are made of."""
    return sizes.low <= token < sizes.vocabulary


@_relation("ENG-5", "batch")
def _batch(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """Requests at once, of different lengths and every second time of different adapters, and each of them alone."""
    prompts = [draw_prompt(draw, sizes, _some_length(draw, sizes)) for _ in range(2 + number % 3)]
    adapters = ("", *sizes.adapters[:2]) if number % 2 else ("",)
    asks = [Ask(f"a{place}", own, adapter=adapters[place % len(adapters)]) for place, own in enumerate(prompts)]
    yield Wave(tuple(asks), sizes.answer)
    yield Forget()
    for place, ask in enumerate(asks):
        yield Wave((replace(ask, name=f"b{place}"),), sizes.answer)


@_relation("ENG-6", "chunks")
def _chunks(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A prompt longer than a step computes, which is cut elsewhere when others take a part of each step."""
    step = sizes.chunk or 4 * sizes.page
    times = min(2 + number % 2, max(1, sizes.longest // step))
    long = draw_prompt(draw, sizes, step * times + number % 3 - 1)
    others = [draw_prompt(draw, sizes, draw.randint(1, 2 * sizes.page)) for _ in range(1 + number % 2)]
    asks = [Ask(f"n{place}", prompt) for place, prompt in enumerate(others)]
    yield Wave((*asks, Ask("a", long)), sizes.answer)
    yield Forget()
    yield _alone("b", long, sizes)


@_relation("ENG-7", "pressure")
def _pressure(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """More requests at once than the pages hold: some give way, and are computed again or brought back.

    They share a beginning or not. Which of them give way is the engine's affair, so that each is asked again. Answers
    are long: who gives way amid one has to go on behind more than its prompt.
    """
    length = max(1, min(sizes.long, sizes.longest - sizes.answer))
    answer = min(2 * sizes.answer, sizes.longest + sizes.answer - length)
    count = 6 if not sizes.pool else max(2, min(12, 2 + -(-3 * sizes.pool // (2 * (length + answer)))))
    shared = draw_prompt(draw, sizes, length // 4) if number % 4 == 1 and length > _LEAST else ()
    lengths = [draw.randint(-(-2 * length // 3), length) - len(shared) for _ in range(count)]
    prompts = [(*shared, *draw_prompt(draw, sizes, own)) for own in lengths]
    yield Wave(tuple(Ask(f"a{place}", prompt) for place, prompt in enumerate(prompts)), answer)
    yield Forget()
    for place, prompt in enumerate(prompts):
        yield Wave((Ask(f"b{place}", prompt),), answer)


@_relation("ENG-8", "eviction")
def _eviction(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A request before and after others have taken the pages that it left, whole or in part."""
    prompt = draw_prompt(draw, sizes, sizes.page * draw.randint(2, 4) + draw.randrange(sizes.page))
    length = sizes.long
    most = 4 if not sizes.pool else max(1, min(12, 1 - -sizes.pool // (length + sizes.answer)))
    longest = length if number % most else sizes.page  # one that takes few pages leaves the others to be hit
    yield _alone("a", prompt, sizes)
    yield _alone("m", prompt, sizes)  # what a hit needs of a window may be kept only now (RET-2)
    for place in range(1 + number % most):
        yield _alone(f"n{place}", draw_prompt(draw, sizes, draw.randint(1, longest)), sizes)
    yield _alone("b", prompt, sizes)
    longer = (*prompt, *draw_prompt(draw, sizes, sizes.longest))[: sizes.long]
    if number % 2 and "forgets" in sizes.offers:  # it takes the last pages there are, its own hits not among them
        yield _alone("c", longer, sizes)
        yield Forget()
        yield _alone("d", longer, sizes)


@_relation("ENG-9", "reset", "reset")
def _reset(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A request, and one that shares its beginning, before and after a reset; with a salt, or beside one taken back."""
    prompt = draw_prompt(draw, sizes, _some_length(draw, sizes))
    longer = (*prompt, *draw_prompt(draw, sizes, sizes.page))[: sizes.longest]
    salt = "one" if "cache_salts" in sizes.offers and number % 3 == 1 else ""
    gone = [Ask("n", longer, abort_after=1)] if "abort_after" in sizes.offers and number % 3 == 2 else []
    yield Wave((*gone, Ask("a", prompt, salt=salt)), sizes.answer)
    other = (*prompt, *draw_prompt(draw, sizes, sizes.page))[: sizes.longest]
    yield Wave((Ask("m", other, salt=salt),), sizes.answer)  # of windows that is kept where two requests parted (RET-2)
    yield Reset()
    yield Wave((Ask("b", longer, salt=salt),), sizes.answer)
    yield Wave((Ask("c", prompt, salt=salt),), sizes.answer)


@_relation("ENG-10", "twice")
def _twice(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """The same request twice at once, beside one that shares its beginning: neither has computed anything yet."""
    prompt = draw_prompt(draw, sizes, sizes.page * draw.randint(1, 3) + number % sizes.page)
    other = (*prompt[: draw.randint(1, len(prompt))], *draw_prompt(draw, sizes, sizes.page))[: sizes.longest]
    yield Wave((Ask("a", prompt), Ask("b", prompt), Ask("c", other)), sizes.answer)
    yield Forget()
    yield _alone("d", prompt, sizes)
    yield _alone("e", other, sizes)


@_relation("ENG-11", "copies", "n")
def _copies(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """Several answers to one request: at temperature 0 all are the same.

    Where there are salts or adapters, some requests have one, which each copy has to keep: the same prompt is asked
    without it, before or after. Where it is asked before, and a salt alone is between them, only counts can show that
    copies found it: so all is asked first behind another prompt, which nobody can find.
    """
    ways = [("", ""), *(("", name) for name in sizes.adapters[:1])]
    ways += [("one", "")] if "cache_salts" in sizes.offers else []
    salt, adapter = ways[number % len(ways)]
    has_key = bool(salt or adapter)
    length = sizes.page * draw.randint(1, 3) + draw.randrange(sizes.page) if has_key else _some_length(draw, sizes)
    ask = Ask("a", draw_prompt(draw, sizes, length), salt=salt, adapter=adapter)
    copies = 2 + number % 2
    steps = [Wave((replace(ask, name=name),), sizes.answer, copies) for name in ("ae" if has_key else "a")]
    before = has_key and number // len(ways) % 2 == 1
    if before and salt:
        other = Ask("n", draw_prompt(draw, sizes, len(ask.prompt)), bare=True)
        yield Wave((other,), sizes.answer)
        for step, name in zip(steps, "bg", strict=True):
            yield replace(step, asks=(replace(ask, name=name),))
        yield Wave((replace(ask, name="h"),), sizes.answer)
        yield Wave((replace(ask, name="i", salt="two"),), sizes.answer, copies)
        yield Forget()
        yield Wave((Ask("c", ask.prompt, bare=True),), sizes.answer)
        yield from steps
        yield Wave((replace(ask, name="f"),), sizes.answer)
        return
    if has_key:  # asked twice, as what a hit needs may be kept only then (RET-2)
        steps.insert(0 if before else 2, _alone("c", ask.prompt, sizes))
    yield from steps
    yield Forget()
    yield Wave((replace(ask, name="b"),), sizes.answer)
    if has_key:
        yield _alone("d", ask.prompt, sizes)


@_relation("ENG-12", "keys", "cache_salts|adapters")
def _keys(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """The same prompt under different salts or adapters: nothing that one computed is another's, nor of its answer."""
    length = sizes.page * draw.randint(1, 3) + draw.randrange(sizes.page)
    if number % 2:  # its answer fills a page that no page of the prompt stands before
        length = max(1, sizes.page - draw.randint(1, max(1, sizes.answer - 1)))
    prompt, adapters = draw_prompt(draw, sizes, length), sizes.adapters[:2]
    asks = [Ask("a", prompt), *(Ask(f"d{place}", prompt, adapter=name) for place, name in enumerate(adapters))]
    if "cache_salts" in sizes.offers:
        salts = (*_NEAR_SALTS[number % len(_NEAR_SALTS)], *adapters[:1])
        asks += [Ask(f"s{place}", prompt, salt=salt) for place, salt in enumerate(salts)]
    draw.shuffle(asks)
    for ask in asks:
        yield Wave((ask,), sizes.answer)
        yield Wave((replace(ask, name=f"{ask.name}+"),), sizes.answer)  # what a hit needs may be kept only now (RET-2)
    room = sizes.longest - len(prompt) - sizes.answer
    more = draw_prompt(draw, sizes, min(room, sizes.page)) if adapters and room > 0 else ()
    if more:
        yield Wave((Ask("g", more, "d0", sizes.answer),), sizes.answer)
    yield Forget()
    for place, name in enumerate(adapters):
        yield Wave((Ask(f"e{place}", prompt, adapter=name),), sizes.answer)
    if more:
        yield Wave((Ask("h", more, "d0", sizes.answer),), sizes.answer)
    yield _alone("f", prompt, sizes)


@_relation("ENG-13", "conversation")
def _conversation(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A prompt, its answer and more, turn by turn; then the whole at once. A prompt that ends amid an answer."""
    turn = sizes.page + number // 2 % sizes.page
    if number % 2:
        turn = min(draw.randint(-(-sizes.longest // 2), sizes.longest), _LONG) - sizes.answer
    turn = sizes.fitting(min(turn, sizes.longest - sizes.answer))
    more = draw_prompt(draw, sizes, max(1, turn // 2))
    yield _alone("a", draw_prompt(draw, sizes, turn), sizes)
    if sizes.longest >= turn + sizes.answer + len(more):
        for name in ("b", "c"):
            yield Wave((Ask(name, more, follows="a", taken=sizes.answer),), sizes.answer)
            if name == "b":
                yield Forget()
    most = min(sizes.answer - 1, sizes.longest - turn)
    if most > 0:
        taken = draw.randint(1, most)
        yield Wave((Ask("d", (), follows="a", taken=taken),), max(1, sizes.answer - taken))


@_relation("ENG-14", "aborts", "abort_after")
def _aborts(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """Requests that share a beginning with others which are taken back amid their answers; and those again, whole."""
    del number
    prompt = draw_prompt(draw, sizes, sizes.page * draw.randint(1, 2) + draw.randrange(sizes.page))
    other = (*prompt[: draw.randint(1, len(prompt))], *draw_prompt(draw, sizes, 2 * sizes.page))[: sizes.longest]
    gone = Ask("n", other, abort_after=draw.randint(1, max(1, sizes.answer - 1)))
    third = draw_prompt(draw, sizes, sizes.middle)
    yield Wave((Ask("a", prompt), gone), sizes.answer)
    yield Wave((Ask("b", other), Ask("c", third)), sizes.answer)
    yield Forget()
    for name, own in (("d", prompt), ("e", other), ("f", third)):
        yield _alone(name, own, sizes)


@_relation("ENG-15", "lengths")
def _lengths(draw: random.Random, sizes: Sizes, number: int) -> Iterator[Step]:
    """A text computed whole, and in parts that end around the ends of pages, windows, chunks and 16-bit positions.

    The parts are prompts that grow, so that each begins where the last one ended; or an answer is computed across such
    an end, and again from prompts that end beside it.
    """
    ends = [end for end in (sizes.window, sizes.chunk, _SHORT_POSITIONS) if end and end <= sizes.longest]
    end = ends[number // 2 % len(ends)] if ends and number % 2 else sizes.page * (1 + number % 5)
    before = end - sizes.answer // 2
    if 0 < before <= sizes.longest and sizes.answer >= _LEAST:
        yield _alone("e", draw_prompt(draw, sizes, before), sizes)
        for taken in range(sizes.answer // 2 - 1, sizes.answer // 2 + 2):
            if before + taken <= sizes.longest:
                yield Wave((Ask(f"e{taken}", (), "e", taken),), sizes.answer - taken)
    cuts = sorted({sizes.fitting(end + by) for by in (-1, 0, 1, sizes.page)})
    text = draw_prompt(draw, sizes, cuts[-1] + 2)
    for place, cut in enumerate(cuts):
        yield _alone(f"a{place}", text[:cut], sizes)
    yield _alone("b", text, sizes)
    yield Forget()
    yield _alone("c", text, sizes)
    yield _alone("d", text[: draw.choice(cuts)], sizes)
