"""A run's report as JUnit's XML, which continuous integration shows: a test case for each clause."""

from collections import Counter
from xml.etree import ElementTree

from ..console.terminal import visible
from .document import header
from .text import verdict_lines
from .verdicts import Report
from .xfails import Xfails

__all__ = ["junit_xml"]


def junit_xml(report: Report, xfails: Xfails) -> str:
    """The report as text.

    A clause that deviates fails, with the verdict as it is printed; one that is undecided, not offered or expected to
    deviate is skipped, with the reason. Nothing in the text is no XML, whatever a backend said (SEC-4).

    Args:
        report: the report.
        xfails: the deviations that are expected.
    """
    suite = ElementTree.Element("testsuite", name=f"kvproof.{report.level}")
    properties = ElementTree.SubElement(suite, "properties")
    told = {
        **header("junit"),
        "backend": report.backend,
        "level": report.level,
        "seed": report.seed,
        "profile": report.profile,
        "without": ",".join(report.without),
        "warning": report.warning,
        "interrupted": report.interrupted,
    }
    for name, value in told.items():
        ElementTree.SubElement(properties, "property", name=name, value=visible(str(value)))
    ends = Counter(_case(suite, report, clause, xfails) for clause in report.clauses)
    stale = xfails.stale(report)
    if stale:
        ElementTree.SubElement(suite, "system-err").text = "\n".join(map(visible, stale))
    counts = {"tests": len(report.clauses), "failures": ends["failure"], "skipped": ends["skipped"], "errors": 0}
    seconds = sum(machine.seconds for machine in report.machines)
    suite.attrib.update({name: str(count) for name, count in counts.items()} | {"time": f"{seconds:.3f}"})
    ElementTree.indent(suite)
    text: str = ElementTree.tostring(suite, encoding="unicode", xml_declaration=False)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(suite: ElementTree.Element, report: Report, clause: str, xfails: Xfails) -> str:
    """Adds a clause's test case. Returns how it ended: ``failure``, ``skipped``, or "" if it passed."""
    case = ElementTree.SubElement(suite, "testcase", classname=f"kvproof.{report.level}", name=clause, time="0")
    verdict = report.verdict(clause)
    expected = xfails.expected(report, clause)
    if verdict == "conforms":
        return ""
    if verdict == "deviates" and expected is None:
        seen = [(m.name, found) for m in report.machines for found in m.deviations if found.clause == clause]
        message = visible(f"expected {seen[0][1].expected}; observed {seen[0][1].observed}")
        failure = ElementTree.SubElement(case, "failure", message=message, type=clause)
        parts = ["\n".join([f"found by machine {name}", *verdict_lines(found)]) for name, found in seen]
        failure.text = "\n\n".join(parts)
        return "failure"
    if expected is not None:
        reason = f"expected to deviate: {expected.reason or f'{xfails.file}:{expected.number}'}"
    elif verdict == "not offered":
        lacking = [name for m in report.machines if clause in m.clauses for name in (*m.missing, *m.lacks)]
        reason = f"not offered: {', '.join(dict.fromkeys(lacking))}"
    else:
        reason = f"undecided: compared in {report.tried(clause)} steps"
    ElementTree.SubElement(case, "skipped", message=visible(reason))
    return "skipped"
