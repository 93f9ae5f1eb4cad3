"""The report on an engine that was judged: lines, JSON, and a test that asks the shortest script again."""

import json
import pprint
from collections.abc import Iterator
from typing import Any

from kvproof.spec.clauses import CLAUSES

from ..report.document import header
from .judging import Deviation, Judgement, RelationReport
from .subjects import CAPABILITIES

__all__ = ["as_json", "lines", "test_source"]


def lines(judgement: Judgement, again: str) -> Iterator[str]:
    """The report, line by line: what the engine offers, its noise, a verdict for each relation, every deviation.

    Args:
        judgement: what came of it.
        again: the command that judges the same again.
    """
    facts, noise = judgement.facts, judgement.noise
    if not judgement.found_out:
        return
    offered = [word for word in CAPABILITIES if word in facts.offers]
    yield f"{facts.name}: offers {', '.join(offered) or 'plain answers only'}"
    lacking = [f"{word} ({about})" for word, about in CAPABILITIES.items() if word not in facts.offers]
    if lacking:
        yield f"  not offered: {', '.join(lacking)}"
    yield f"  {_coldness(judgement)}"
    if facts.longer:
        yield f"  requests have at most {facts.max_model_len} tokens, as longer ones are refused: {facts.longer}"
    if not judgement.reports:
        return
    measured = (
        f"alone {noise.alone:.2g}, beside others {noise.batched:.2g}, in other shapes {noise.shapes:.2g}"
        if judgement.plan.tolerance is None
        else "not measured"
    )
    yield f"noise of log-probabilities: {measured}; held to {judgement.bound:.2g}"
    for report in judgement.reports:
        yield f"{report.relation.clause:7}{report.relation.name:14}{_verdict(report)}"
    found = f", {judgement.cached} tokens found cached" if "cached_tokens" in facts.offers else ""
    yield f"{judgement.requests} requests{found}"
    for deviation in judgement.deviations:
        yield from _deviation_lines(deviation)
    if judgement.deviations:
        yield f"again: {again}"


def _coldness(judgement: Judgement) -> str:
    facts = judgement.facts
    if not facts.forgets:
        return "nothing makes a request cold: what is warm is held against what is warm"
    sure = "" if facts.forgets_surely else ", though it was not seen to"
    return f"a request is made cold by {CAPABILITIES[facts.forgets]}{sure}"


def _verdict(report: RelationReport) -> str:
    verdict = report.verdict
    match verdict:
        case "not offered":
            return f"not offered: needs {', '.join(report.lacks).replace('|', ' or ')}"
        case "refused":
            return f"refused: {report.refused}"
        case "undecided":
            return verdict
    scripts = f"{report.scripts} script{'s' if report.scripts > 1 else ''}"
    refused = f", {report.refusals} refused" if report.refusals else ""
    apart = f", at most {report.largest:.2g} apart" if verdict == "within the bound" else ""
    return f"{verdict}{apart} ({scripts}{refused})"


def _deviation_lines(deviation: Deviation) -> Iterator[str]:
    number = deviation.script.num_requests
    yield ""
    yield f"{deviation.clause} broken, shown by {deviation.relation} in {number} request{'s' if number > 1 else ''}"
    yield f"  the clause  {CLAUSES[deviation.clause].sentence}"
    yield f"  expected    {deviation.expected}"
    yield f"  observed    {deviation.observed}"
    yield from (f"    {line}" for line in deviation.script.lines())
    yield f"  performed again it showed {deviation.again} time{'' if deviation.again == 1 else 's'}"


def as_json(judgement: Judgement) -> dict[str, Any]:
    """What came of it as JSON values; the scripts in it are replayed by ``--script``."""
    facts, noise = judgement.facts, judgement.noise
    return {
        **header("judgement"),
        "engine": facts.name,
        "seed": judgement.plan.seed,
        "offers": sorted(facts.offers),
        "not_offered": [word for word in CAPABILITIES if word not in facts.offers],
        "forgets": facts.forgets,
        "noise": {"alone": noise.alone, "batched": noise.batched, "shapes": noise.shapes},
        "bound": judgement.bound,
        "requests": judgement.requests,
        "cached_tokens": judgement.cached,
        "ended": judgement.ended,
        "relations": [_relation_json(report) for report in judgement.reports],
        "deviations": [deviation_json(deviation) for deviation in judgement.deviations],
    }


def _relation_json(report: RelationReport) -> dict[str, Any]:
    return {
        "relation": report.relation.name,
        "clause": report.relation.clause,
        "verdict": report.verdict,
        "scripts": report.scripts,
        "refused": report.refused,
        "lacks": report.lacks,
        "largest": report.largest,
    }


def deviation_json(deviation: Deviation) -> dict[str, Any]:
    """A deviation as JSON values."""
    return {
        "clause": deviation.clause,
        "sentence": CLAUSES[deviation.clause].sentence,
        "relation": deviation.relation,
        "expected": deviation.expected,
        "observed": deviation.observed,
        "again": deviation.again,
        "requests": deviation.script.num_requests,
        "script": deviation.script.as_json(),
    }


_TEST = '''\
"""{title}

Found by: {command}
"""

from kvproof.conformance.oracle.replaying import replay

{scripts}
'''

_CASE = '''
def test_{name}() -> None:
    """{doc}"""
    script = {script}
    assert replay({arguments}, script=script, bound={bound!r}) is None
'''


def test_source(judgement: Judgement, arguments: dict[str, Any], command: str) -> str:
    """A pytest file with a test for each deviation: it asks the script again, and fails while answers contradict.

    Args:
        judgement: what came of it.
        arguments: those of `replaying.replay` that name the engine and what is known of it.
        command: the command that found it.
    """
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    cases = [
        _CASE.format(
            name=f"{found.clause.lower().replace('-', '_')}_{found.relation}",
            doc=_plain(f"{found.clause}: expected {found.expected}; observed {found.observed}."),
            script=pprint.pformat(found.script.as_json(), width=110, compact=True, sort_dicts=False).replace(
                "\n", "\n    "
            ),
            arguments=given,
            bound=judgement.bound,
        )
        for found in judgement.deviations
    ]
    title = "Questions that an engine answered in two ways."
    return _TEST.format(title=title, command=_plain(command), scripts="\n".join(cases))


test_source.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a test by its name


def _plain(text: str) -> str:
    """A text of an engine, escaped so that it may stand in a docstring."""
    return json.dumps(text, ensure_ascii=True)[1:-1]
