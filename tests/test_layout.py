"""The house: which folder may import what, how long a module is, and what an import costs."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("spec", "fast", "kernels", "conformance")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

EXTERNAL = {
    "spec": {"numpy", "ml_dtypes", "msgspec"},
    "fast": {"numpy", "jax", "zmq"},
    "kernels": {"numpy", "jax"},
    "conformance": {"numpy", "jax", "hypothesis", "rich", "pytest", "safetensors"},
}
"""The packages from elsewhere that a folder may import; conformance imports JAX, and spec and
fast import what sends events, where they run and not at their top."""

PYTEST = {"pytest_plugin", "pytest_run", "test_conformance"}
"""The modules of conformance that are pytest's: no other imports it, so that the command does without."""

OURS = {
    "spec": ("kvproof.spec",),
    "fast": ("kvproof.fast", "kvproof.kernels"),
    "kernels": ("kvproof.kernels",),
    "conformance": ("kvproof.conformance", "kvproof.spec"),
}
"""What a folder may import of ours; fast may also import the one module of ``ALSO``."""

ALSO = {"fast": "kvproof.spec.declarations"}

MAX_LINES = 600
"""The most lines of a module: one idea, however long it is, is shorter."""


def _imports(path: Path, at_once: bool = False) -> Iterator[str]:
    """The absolute names of what a module imports.

    Args:
        path: the module.
        at_once: only what is imported when the module is: nothing within functions or for type checkers only.
    """
    package = ["kvproof", *path.relative_to(ROOT).parts[:-1]]
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if at_once and isinstance(node, ast.FunctionDef):
            continue
        if at_once and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def _module_of(name: str) -> str | None:
    """The module of ours that an imported name stands in; None for what is not ours."""
    parts = name.split(".")
    while parts and parts[0] == "kvproof":
        path = ROOT.joinpath(*parts[1:])
        if path.with_suffix(".py").is_file():
            return ".".join(parts)
        if len(parts) > 1 and (path / "__init__.py").is_file():
            return ".".join(parts)
        parts.pop()
    return None


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["kvproof", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _may_import(path: Path, name: str) -> bool:
    """Whether a module may import what has this name."""
    folder, top = path.relative_to(ROOT).parts[0], name.split(".")[0]
    if top == "kvproof":
        packages = (*OURS[folder], *([ALSO[folder]] if folder in ALSO else []))
        return name == "kvproof.__version__" or any(_within(name, package) for package in packages)
    if top == "pytest" and path.stem not in PYTEST:
        return False
    return top in sys.stdlib_module_names or top in EXTERNAL[folder]


def test_a_folder_imports_only_what_it_may() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in MODULES
        for name in _imports(path)
        if not _may_import(path, name)
    ]
    assert wrong == []


def test_a_folder_is_left_by_its_full_name_only() -> None:
    """Relative imports stay inside a folder; those across folders say ``kvproof.x``."""
    wrong = [
        f"{path.relative_to(ROOT)}, line {node.lineno} leaves the folder by dots"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level > len(path.relative_to(ROOT).parts) - 1
    ]
    assert wrong == []


def _circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle in a graph, if there is any."""
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail, name]
        if name in done:
            return []
        done.add(name)
        return next((found for other in sorted(graph[name] - {name}) if (found := visit(other, [*trail, name]))), [])

    return next((found for name in graph if (found := visit(name, []))), [])


def test_no_module_imports_itself_in_a_circle() -> None:
    names = {_name(path): path for path in MODULES}
    graph = {
        name: {module for imported in _imports(path, at_once=True) if (module := _module_of(imported)) in names}
        for name, path in names.items()
    }
    assert sum(map(len, graph.values())) > len(graph), "the imports were found"
    assert _circle({name: {str(module) for module in modules} for name, modules in graph.items()}) == []


def test_no_folder_imports_itself_in_a_circle() -> None:
    """Not even by what only type checkers or functions import."""
    graph: dict[str, set[str]] = {folder: set() for folder in FOLDERS}
    for path in MODULES:
        imported = {name.split(".")[1] for name in _imports(path) if name.startswith("kvproof.")}
        graph[path.relative_to(ROOT).parts[0]] |= imported & set(FOLDERS)
    assert graph["fast"] >= {"spec", "kernels"}, "the imports were found"
    assert _circle(graph) == []


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["a", "b", "c", "b"]


def test_a_module_says_what_it_is_for() -> None:
    paths = [*MODULES, ROOT / "src" / "kvproof" / "__init__.py"]
    silent = [path for path in paths if not (ast.get_docstring(ast.parse(path.read_text())) or "").strip()]
    assert silent == []


def test_a_module_is_short() -> None:
    assert [path for path in MODULES if len(path.read_text().splitlines()) > MAX_LINES] == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_links_in_src_point_to_the_folders(folder: str) -> None:
    link = ROOT / "src" / "kvproof" / folder
    assert link.is_symlink()
    assert link.readlink() == Path("..") / ".." / folder
    assert link.resolve() == (ROOT / folder).resolve()


@pytest.mark.parametrize("module", ["kvproof", "kvproof.spec", "kvproof.conformance"])
def test_importing_it_loads_no_jax(module: str) -> None:
    """JAX takes 0.6 s to load: only what computes on a device pays for it."""
    code = f"import sys, {module}; print(sorted(m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_importing_kvproof_loads_none_of_its_folders() -> None:
    code = "import sys, kvproof; print(sorted(m for m in sys.modules if m.startswith('kvproof.')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
