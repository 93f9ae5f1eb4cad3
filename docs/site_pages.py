"""What the site has beside the pages of this folder: pages of other folders, and those that are made from code.

A hook of MkDocs, named in ``mkdocs.yml``. Links between pages are written as they stand in the repository, so that they
lead somewhere there too; here they become those of the site.
"""

import posixpath
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kvproof import conformance, fast
from kvproof.conformance.commands.clauses import clause_list
from kvproof.conformance.console.named import family_of

ROOT = Path(__file__).parent.parent

ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONFORMANCE.md": "conformance.md",
    "CONTRIBUTING.md": "contributing.md",
    "conformance/adapters/NAMES.md": "names.md",
    "fast/README.md": "design/fast.md",
    "fast/growth.svg": "growth.svg",
    "spec/README.md": "design/spec.md",
}
"""Where files of the repository that do not lie in this folder stand in the site."""

ROOMS = {
    "device": ("Pages on the device", ("kvproof.fast.cache", "kvproof.fast.layout", "kvproof.kernels")),
    "documents": ("Documents: events, prefixes", ("kvproof.fast.saved", "kvproof.spec.declarations.event")),
    "host": ("Pool, manager, tables", ("kvproof",)),
}
"""The pages of the reference: their titles, and the modules whose names they have, unless a page before has them."""

LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that do not lie in this folder."""
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for place, text in _reference():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes a page's links those of the site, and writes what is made from code below the clauses."""
    del config, files
    place = page.file.src_uri
    if place == "clauses.md":
        markdown += "\n".join(["", *_clauses()])
    sources = {there: here for here, there in ELSEWHERE.items()}
    folder = posixpath.dirname(sources.get(place, f"docs/{place}"))

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        there = ELSEWHERE.get(target, target.removeprefix("docs/"))
        if there == target:
            raise PluginError(f"{sources.get(place, place)}: {found[0]} leads out of the site")
        return f"]({posixpath.relpath(there, posixpath.dirname(place) or '.')}{found[2] or ''})"

    return LINK.sub(link, markdown)


def _clauses() -> Iterator[str]:
    """Every clause under its label: its sentence, the code that implements it, what checks it."""
    clauses = clause_list()
    families = list(dict.fromkeys(family_of(clause["clause"]) for clause in clauses))
    family = ""
    for clause in sorted(clauses, key=lambda clause: families.index(family_of(clause["clause"]))):
        label: str = clause["clause"]
        if family_of(label) != family:
            family = family_of(label)
            yield f"## {family}\n"
        yield f"### {label} {{ #{label} }}\n\n{clause['sentence']}\n"
        yield f"*{clause['class']}*\n"
        yield f"An example: {clause['example_of']}.\n"
        yield f"```{'py' if clause['example_of'].startswith('calls') else 'text'}\n{clause['example']}```\n"
        if clause["reports"]:
            yield "What systems did, and the seeded bug of that name does:\n"
            yield "\n".join(f"- `{name}`: {says}" for name, says in clause["reports"].items()) + "\n"
        implemented = ", ".join(f"`{name}`" for name in clause["implemented"])
        yield f"**Implemented by** {implemented or 'nothing'}\n"
        yield f"**Checked by** {', '.join(_checking(clause['checked'])) or 'nothing'}\n"


def _checking(names: list[str]) -> Iterator[str]:
    """What checks a clause, by machine: the step, or of several their number, as some clauses are looked at in all."""
    for machine, steps in groupby(names, lambda name: name.partition(".")[0]):
        first, *others = steps
        yield f"`{first}`" if not others else f"`{machine}` in {len(others) + 1} steps"


def _reference() -> Iterator[tuple[str, str]]:
    """The pages of the reference, by name: the public names of the fast backend, those of the suite."""
    left = set(fast.__all__)
    for room, (title, modules) in ROOMS.items():
        names = [name for name in left if getattr(getattr(fast, name), "__module__", "").startswith(modules)]
        names.sort(key=lambda name: ("Coordinator" in name, name))  # the inside of a manager comes last
        left.difference_update(names)
        yield f"reference/{room}.md", _page(title, [f"kvproof.fast.{name}" for name in names])
    yield "reference/conformance.md", _page("Conformance", [f"kvproof.conformance.{n}" for n in conformance.__all__])


def _page(title: str, names: list[str]) -> str:
    return "\n\n".join([f"# {title}", *(f"::: {name}{_left_out(name)}" for name in names)]) + "\n"


def _left_out(name: str) -> str:
    """What is left out of a class: of a pool what its package's own manager uses, which `dir` of a pool leaves out."""
    if name != "kvproof.fast.PagePool":
        return ""
    shown = dir(fast.PagePool(2, enable_caching=True))
    others = [other for other in dir(fast.PagePool) if not other.startswith("_") and other not in shown]
    return f"\n    options:\n      filters: ['!^_', '!^({'|'.join(others)})$']"
