"""The kernels machines: a backend's kernels for a device that is not there, interpreted, with races looked for."""

from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from ..backends.levels import LEVELS
from ..calls.values import signed
from .arrays import Near, shape_and_type, worst
from .attention import RaggedMachine
from .base import Side
from .draws import Drawing, some
from .properties import start, step
from .ragged import GPU_INTERPRETED, INTERPRETED, Batch

__all__ = ["GpuKernels", "Kernels"]

_TOKENS = 6


class InterpretedKernels(RaggedMachine):
    """A backend's kernels, which an interpreter of JAX's runs: an object with ``attend`` and ``update``.

    They take numpy arrays and give what came out (``output``) and what the interpreter reported (``minds``: races,
    semaphores that are not at zero at the end), which must be nothing.

    Attributes:
        holder: the backend's name for that object.
        minds: what it reported in the last call.
    """

    levels = frozenset(LEVELS)
    capability = "kernels"
    holder: ClassVar[str]
    minds = ""

    @start()
    def construct(self) -> None:
        """Nothing is kept from call to call; what the public function refuses is another machine's to see."""
        self.setups, self.simplest, self.options = list(self.known), "", []

    def function(self, batch: Batch) -> str:
        """See `RaggedMachine.function`."""
        return f"{self.holder}.attend, or {super().function(batch)}"

    def attended(self, side: Side, batch: Batch, given: list[Any], keywords: dict[str, Any] | None = None) -> Any:
        """See `RaggedMachine.attended`: the backend's kernel is interpreted."""
        if side is self.spec:
            return super().attended(side, batch, given, keywords)
        setup = batch.kind
        attend = side.names.get(self.holder).attend
        return self.noted(attend(*given, num_kv_heads=setup.layout.heads, **setup.options))

    def judge(self, batch: Batch, right: Any, seen: Any, pages: Any, fused: Any = None) -> None:
        """See `RaggedMachine.judge`; first there must be no race (ATT-6)."""
        self.hold_minds("ATT-6")
        super().judge(batch, right, seen, pages, fused)

    @step("ATT-3", weight=2)
    def missing_page(self, data: Drawing) -> None:
        """A query reads two pages, of which one does not exist: it reads the other, whatever stands in the table.

        The specification refuses such a table; what is right it says of the other page alone. The query is in reach
        of all keys of both pages, else the same window would let through more keys of the first page by itself.
        """
        setup = self.known[data.one_of(list(self.known))]
        name = next(name for name, each in self.known.items() if each is setup)
        size, gone = setup.layout.page_size, data.draw(st.integers(0, 1))
        pages = tuple(some(data, range(1, setup.layout.num_pages), most=2, least=2))
        length = data.one_of([n for n in range(size + 1, 2 * size + 1) if setup.first_key(1, n) == 0])
        batch = Batch(name, (1,), (length,), (pages,), (0,), seed=data.draw(st.integers(0, 99)))
        right, wrong = batch.arguments(), batch.arguments()
        wrong[3][0, gone] = data.one_of([-1, 2**31 - 1, setup.layout.num_pages])
        right[2][0], right[3][0, 0] = size if gone else length - size, pages[1 - gone]
        both = self.call(
            f"{self.function(batch)}(*batch.arguments(), ...)  # page_table={wrong[3].tolist()}; batch = {batch}",
            lambda side: self.attended(side, batch, right if side is self.spec else wrong),
            "ATT-3",
            shape_and_type,
        )
        wanted, out = np.asarray(both.spec).astype(np.float64), np.asarray(both.backend)
        near = Near(wanted, batch.tolerance(wanted, right[1]))
        place = worst(near, out)
        if place is not None:
            self.differ("ATT-3", *near.told(place, out))

    @step("CACHE-2", "CACHE-3", weight=2)
    def update(self, data: Drawing) -> None:
        """Tokens are copied into their slots: without a race, and nothing else is touched."""
        setup = next(iter(self.known.values()))
        self.layout = layout = setup.layout
        slots = some(data, range(layout.num_slots), most=_TOKENS)
        mapping = np.array([*slots, *[-1] * (_TOKENS - len(slots))], np.int32)
        seed = data.draw(st.integers(0, 99))
        keys, values = (
            signed(seed + place, (_TOKENS, layout.heads, size), setup.queries) for place, size in enumerate(layout.dims)
        )
        before = layout.empty()

        def act(side: Side) -> Any:
            if side is self.spec:
                return side.names.get("kv_cache_update")(before, keys, values, mapping)
            return self.noted(side.names.get(self.holder).update(before, keys, values, mapping))

        line = f"{self.holder}.update(pages, keys, values, {mapping.tolist()})  # of seed {seed}"
        made = self.call(line, act, "CACHE-3", self.described)
        self.hold_minds("CACHE-3")
        self.hold_update(before, made.backend, slots, keys[: len(slots)], values[: len(slots)])

    def noted(self, run: Any) -> Any:
        """What a run gave; what the interpreter reported is noted."""
        self.minds = str(run.minds)
        return run.output

    def hold_minds(self, clause: str) -> None:
        """Holds that the interpreter reported nothing."""
        self.check(clause, "what the interpreter reports", "", lambda: self.minds)


class Kernels(InterpretedKernels):
    """A backend's ``tpu_kernels``, in TPU interpret mode."""

    name = "kernels"
    needs = ("tpu_kernels", "tpu_kernels.attend", "tpu_kernels.update")
    holder = "tpu_kernels"
    examples, num_steps = 10, 5
    known = INTERPRETED


class GpuKernels(InterpretedKernels):
    """A backend's ``gpu_kernels``, in the interpreter of Mosaic GPU; a call takes ten seconds or so."""

    name = "gpu-kernels"
    needs = ("gpu_kernels", "gpu_kernels.attend", "gpu_kernels.update")
    holder = "gpu_kernels"
    examples, num_steps = 6, 3
    known = GPU_INTERPRETED
