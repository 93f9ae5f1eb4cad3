"""A wrong result of attention as a test: the batch in a line, from which its arrays are made again, and one number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..machines.arrays import Near, worst
from ..machines.attention import RaggedMachine
from .literals import Literals

__all__ = ["lines_of_attention"]


def lines_of_attention(machine: RaggedMachine, judged: Mapping[str, Any], literals: Literals) -> list[str]:
    """The lines of a test that attends once.

    Args:
        machine: the machine that saw the result.
        judged: what its `judge` was given, by name.
        literals: writes values.

    Returns:
        The lines, the last of them an assertion; nothing where the call was another one than of plain attention.
    """
    batch = judged["batch"]
    if judged.get("fused") is not None or type(machine).attended is not RaggedMachine.attended:
        return []
    wanted, out = np.asarray(judged["right"]).astype(np.float64), np.asarray(judged["seen"])
    near = Near(wanted, machine.tolerance(batch, wanted, judged["pages"]))
    place = worst(near, out)
    if place is None:
        return []
    clean = literals.of(machine.harmless()) if machine.harmless() else ""
    scaled = ["arguments[-5] = backend.ScaledPages(*arguments[-5])"] if batch.kind.layout.scaled else []
    at = ", ".join(map(str, place))
    right, allowed = float(near.right[place]), float(near.tolerance[place])
    return [
        f"batch = {literals.of(batch)}",
        f"arguments = batch.arguments({clean})",
        *scaled,
        f"out = backend.{batch.kind.function}(*arguments, **batch.keywords())",
        f"assert abs(float({literals.numpy()}.asarray(out)[{at}]) - {right!r}) <= {allowed!r}",
    ]
