"""The timeline: what it holds, that nothing in it is markup (SEC-4), and that a browser draws it and steps through."""

import html.parser
import json
import random
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast
from kvproof.conformance import record
from kvproof.conformance.cli import main
from kvproof.conformance.log.frames import Frame, every
from kvproof.conformance.timeline import document, page, trace

HOSTILE = "</script><script>document.title='owned'</script><!-- \u2028 & \" ' {{data}} \x1b[31m"

LAYERS = fast.FullAttentionSpec(page_size=4, num_kv_heads=1, head_size=8, dtype="float32")

CHROMIUM = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)


def frame(number: int, **changes: Any) -> Frame:
    parts: dict[str, Any] = {
        "number": number,
        "step": number // 2,
        "call": f"call {number}",
        "owners": {},
        "cached": frozenset(),
        "free": (),
        "evicted": (),
        "rows": (),
        "fault": None,
    }
    return Frame(**parts | changes)


pages = st.integers(1, 6)


@st.composite
def histories(draw: st.DrawFn) -> list[Frame]:
    """Frames that need not be any pool's: whatever they show, the differences add up to it."""
    names = st.sampled_from(["a", "b", HOSTILE])
    return [
        frame(
            number,
            owners=draw(st.dictionaries(pages, st.lists(names, max_size=2, unique=True).map(tuple))),
            cached=draw(st.frozensets(pages)),
            free=tuple(draw(st.lists(pages, unique=True))),
            evicted=tuple(draw(st.lists(pages, unique=True, max_size=2))),
            rows=tuple(tuple(row) for row in draw(st.lists(st.lists(pages, max_size=4), max_size=3))),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


def states(made: Mapping[str, Any]) -> Iterator[tuple[dict[int, int], list[int], list[list[int]]]]:
    """Adds the differences up again, as the script does: pages by code, the free queue, the rows."""
    codes: dict[int, int] = {}
    queue: list[int] = []
    rows: list[list[int]] = []
    for _, _, _, changed, (taken, front, back), _, edits, _ in made["frames"]:
        codes = {**codes, **dict(zip(changed[::2], changed[1::2], strict=True))}
        queue = [*front, *(number for number in queue if number not in taken), *back]
        rows = [list(row) for row in rows]
        for number, kept, tail in zip(edits[::3], edits[1::3], edits[2::3], strict=True):
            rows += [[] for _ in range(number + 1 - len(rows))]
            rows[number] = [*rows[number][:kept], *tail]
        yield {number: code for number, code in codes.items() if code}, queue, rows


@given(histories())
def test_the_differences_add_up_to_the_frames(frames: list[Frame]) -> None:
    made = document("t", frames)
    assert made["num_pages"] == 1 + max([0, *(n for f in frames for n in (*f.owners, *f.cached, *f.free))])
    for shown, (codes, queue, rows) in zip(frames, states(made), strict=True):
        held = {n: tuple(made["requests"][r] for r in made["holders"][c // 2]) for n, c in codes.items() if c > 1}
        assert held == shown.owners
        assert {number for number, code in codes.items() if code % 2} == shown.cached
        assert queue == list(shown.free)
        assert [row for row in rows if row] == [list(row) for row in shown.rows if row]


def test_a_step_writes_what_it_changes_and_no_more() -> None:
    """Most calls take from the front of the free queue and put behind it: the price of 2,000 pages is paid once."""
    free = tuple(range(1, 2001))
    made = document(
        "t", [frame(0, free=free), frame(1, free=free[3:], owners={1: ("a",)}), frame(2, free=(*free[3:], 2))]
    )
    assert made["frames"][0][4] == [[], [], list(free)]
    assert made["frames"][1][3:5] == [[1, 4], [[1, 2, 3], [], []]]
    assert made["frames"][2][3:5] == [[1, 0], [[], [], [2]]]


class Markup(html.parser.HTMLParser):
    """Collects what a browser would take for elements, and what of them loads something."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "action", "data", "poster", "srcset")]
        self.loads += [name for name, _ in attrs if name.startswith("on")]


def test_hostile_text_is_no_markup() -> None:
    """SEC-4: whatever ids, calls and titles hold, the page has the same elements, and loads nothing."""
    plain, hostile = Markup(), Markup()
    plain.feed(page(document("title", [frame(0, owners={1: ("a",)})])))
    text = page(document(HOSTILE, [frame(0, owners={1: (HOSTILE,)}, call=HOSTILE, fault=HOSTILE)]))
    hostile.feed(text)
    assert hostile.tags == plain.tags
    assert hostile.loads == []
    assert "\x1b" not in text
    assert "url(" not in text
    assert "://" not in text


def test_what_is_no_unicode_text_can_be_shown() -> None:
    page(document("\ud800", [frame(0, owners={1: ("\ud800",)})])).encode()


def history(num_pages: int, count: int) -> list[Frame]:
    """What a pool may do: requests take pages from the front, share, give them back behind."""
    draw = random.Random(0)
    free = list(range(1, num_pages))
    cached: set[int] = set()
    held: dict[str, list[int]] = {}
    frames = []
    for number in range(count):
        evicted: list[int] = []
        if len(held) < 20 and len(free) > num_pages // 10:
            taken = [free.pop(0) for _ in range(draw.randint(1, num_pages // 20))]
            evicted = [page for page in taken if page in cached]
            cached -= set(taken)
            held[f"request {number}"] = taken
        else:
            gone = held.pop(draw.choice(list(held)))
            cached |= set(gone)
            free += gone[::-1]
        owners = {page: (name,) for name, own in held.items() for page in own}
        rows = tuple(tuple(own) for own in held.values())
        frames.append(
            frame(number, owners=owners, cached=frozenset(cached), free=tuple(free), evicted=tuple(evicted), rows=rows)
        )
    return frames


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: the page is looked at where there is one")
def test_a_browser_shows_it_and_steps_through(tmp_path: Path) -> None:
    frames = history(60, 40)
    shown = document(HOSTILE, [*frames[:-1], frame(39, step=19, owners={3: ("a", HOSTILE)}, free=(7,), fault="POOL-5")])
    probe = """
<script>
const seen = [];
function see(key, shift) {
  document.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey: Boolean(shift) }));
  seen.push([byId("number").textContent, byId("queue").textContent.trim(), byId("holders").textContent]);
}
const start = byId("number").textContent, alarm = byId("fault").textContent;
see("Home"); see("ArrowRight"); see("ArrowRight"); see("ArrowLeft"); see("ArrowRight", true); see("End");
see("+"); see("f");
const dots = new Set(time.getContext("2d").getImageData(0, 0, time.width, time.height).data).size;
document.body.innerHTML = "";
const pre = document.createElement("pre");
pre.textContent = JSON.stringify({ start, alarm, seen, dots, title: document.title });
document.body.append(pre);
</script>"""
    file = tmp_path / "timeline.html"
    file.write_text(page(shown).replace("</body>", probe + "</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'user'}", "--dump-dom"]
    ran = subprocess.run([CHROMIUM, *flags, file.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(html.unescape(ran.stdout.split("<pre>")[1].split("</pre>")[0]))
    assert found["start"].startswith("picture 40 of 40, operation 39, step 19"), "it opens at the fault"
    assert found["alarm"] == "POOL-5"
    assert found["title"] != "owned"
    assert [seen[0].split(",")[0].removeprefix("picture ") for seen in found["seen"]] == [
        f"{number} of 40" for number in (1, 2, 3, 2, 3, 40, 40, 40)
    ]
    for seen in found["seen"]:
        number = int(seen[0].split()[1])
        assert seen[1] == " ".join(map(str, frames[number - 1].free if number < 40 else (7,)))
    assert HOSTILE in found["seen"][-1][2]
    assert found["dots"] > 4, "the picture has colours"


def test_a_log_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SEC-2: what the engine's tokens are is not in the page unless it was asked for."""
    manager = fast.CacheManager(6, [fast.CacheGroupSpec(LAYERS)], max_model_len=16)
    log, out = tmp_path / "engine.log", tmp_path / "engine.html"
    with record(manager, log, show_tokens=True) as recorded:
        for name in ("a", HOSTILE):
            request = fast.Request(name, [4711, 4712, 4713, 4714, 4715])
            pages, hit = recorded.get_computed_pages(request)
            recorded.allocate_slots(request, 5 - hit, hit, pages)
    assert main(["show", str(log), "-o", str(out)]) == 0
    assert "4 pictures of 6 pages" in capsys.readouterr().out
    text = out.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["requests"] == ["a", HOSTILE]
    assert [frame[0] for frame in data["frames"]] == [1, 2, 3, 4]
    assert [0, 1] in data["holders"], "the first page is shared"
    assert "4711" not in text
    perfetto = tmp_path / "engine.json"
    assert main(["show", str(log), "-o", str(perfetto)]) == 0
    assert "open it at ui.perfetto.dev" in capsys.readouterr().out
    assert "4711" not in perfetto.read_text(encoding="utf-8")
    assert {event["name"] for event in json.loads(perfetto.read_text())["traceEvents"]} >= {"a", HOSTILE, "pages"}
    assert main(["show", str(log), "-o", str(out), "--redact"]) == 0
    assert "\\u2028" not in out.read_text(encoding="utf-8")


@given(histories())
def test_a_trace_says_who_held_pages_when(frames: list[Frame]) -> None:
    """For Perfetto: the bars of a request cover the frames in which it holds pages, and no two in a track overlap."""
    frames = [replace(one, number=place + 1) for place, one in enumerate(frames)]
    events = trace("t", frames)["traceEvents"]
    assert json.loads(json.dumps(events)) == events
    bars = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    for one in frames:
        here = [event for event in bars if event["ts"] <= one.number * 1000 < event["ts"] + event["dur"]]
        assert sorted(event["name"] for event in here) == sorted({name for own in one.owners.values() for name in own})
        assert len({event["tid"] for event in here}) == len(here)
    counts = [event for event in events if event["ph"] == "C"]
    last = frames[-1]
    assert counts[-1]["args"]["held"] == len(last.owners)
    assert counts[-1]["args"]["cached"] == len(last.cached - last.owners.keys())
    assert [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 3] == [f.call for f in frames]


def test_a_trace_marks_hits_what_gave_way_and_the_fault() -> None:
    frames = [
        frame(1, owners={1: ("a",), 2: ("a",)}, cached=frozenset({1})),
        frame(2, free=(2, 1), cached=frozenset({1})),
        frame(3, owners={1: ("a", "b")}, cached=frozenset({1}), fault="POOL-5: pages"),
    ]
    marks = [(one["name"], one["ts"]) for one in trace("t", frames)["traceEvents"] if one["ph"] == "i"]
    assert ("a gave way", 2000) in marks
    assert ("a hit 1 pages", 3000) in marks
    assert ("b hit 1 pages", 3000) in marks
    assert ("differs from the specification", 3000) in marks


@pytest.mark.parametrize(
    ("log", "out", "said"),
    [
        ("no_such.log", "out.html", "no_such.log"),
        ("bad.log", "out.html", "bad.log"),
        ("bad.log", "no/out.html", "no/out"),
    ],
)
def test_what_cannot_be_drawn(
    log: str, out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.log").write_text("{}\n")
    assert main(["show", log, "-o", out]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_a_large_log_is_compact() -> None:
    """2,000 pages and 400 operations: what is written grows with what changes, not with pages times operations."""
    frames = [replace(shown, rows=()) for shown in history(2000, 400)]
    changed = sum(len(set(one.owners) ^ set(other.owners)) for one, other in pairwise(frames))
    assert len(json.dumps(document("t", frames))) < 40 * changed + 100_000


def test_of_a_long_log_some_operations_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """O(pages) for each picture: all of a long log would take hours. The last operation is always drawn."""
    log, out = tmp_path / "engine.log", tmp_path / "engine.html"
    with record(fast.CacheManager(50, [fast.CacheGroupSpec(LAYERS)], max_model_len=16), log) as recorded:
        for number in range(2_345):
            request = fast.Request(f"r{number}", [1, 2, 3])
            recorded.allocate_slots(request, 3)
            recorded.free(request)
    assert main(["show", str(log), "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert "1,564 pictures of 50 pages, one for 3 operations" in told
    assert f"; -o {out.with_suffix('.json')} has more of them" in told
    text = out.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["every"] == 3
    assert [frame[0] for frame in data["frames"]] == [*range(3, 4_690, 3), 4_690]
    assert 'id="sampled"' in text


@pytest.mark.parametrize(("pages", "most"), [(50, 2_000), (200_000, 200), (1_000_000, 200)])
def test_how_many_pictures_there_are_goes_by_the_pages(pages: int, most: int, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    made = ["make", 0, "PagePool", {"num_pages": pages, "enable_caching": True}]
    calls = [["call", 0, "get_num_free_pages", {}, 0]] * 10_000
    lines = [
        {"kvproof": "log", "version": 1, "tokens": "mapped"},
        [made],
        *([call] for call in calls),
        [["end", 10_000]],
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert every(log) == 10_000 // most


@pytest.mark.skipif(
    shutil.which("node") is None, reason="no Node.js is installed: the script is run where there is one"
)
@pytest.mark.parametrize("num_pages", [50, 20_001, 200_000, 1_000_000])
def test_no_canvas_is_larger_than_browsers_draw(num_pages: int, tmp_path: Path) -> None:
    """Above 65,535 lines they draw nothing, and say nothing."""
    free = tuple(range(1, num_pages))
    made = document("t", [frame(0, free=free), frame(1, free=free[1:], owners={1: ("a",)}, evicted=(1,))], 7)
    script = Path(document.__code__.co_filename).with_name("page.js").read_text(encoding="utf-8")
    stub = """
const elements = {};
const element = (id) => elements[id] ??= {
  id, style: {}, clientWidth: 1400, addEventListener() {}, append() {}, replaceChildren() {}, textContent: "",
  getContext: () => ({ putImageData() {}, fillRect() {}, strokeRect() {},
    createImageData: (wide, high) => ({ data: new Uint8ClampedArray(4 * wide * high) }) }),
};
const document = {
  getElementById: element, createElement: () => element("new"), addEventListener() {}, body: element("body"),
};
const location = { hash: "" };
const matchMedia = () => ({ matches: false, addEventListener() {} });
element("data").textContent = require("fs").readFileSync("data.json", "utf-8");
"""
    (tmp_path / "data.json").write_text(json.dumps(made))
    told = "console.log(JSON.stringify([time.height, elements.pages.height, elements.pages.width, elements.sampled]));"
    (tmp_path / "run.js").write_text("\n".join([stub, script, told]))
    ran = subprocess.run(["node", "run.js"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    high, grid_high, grid_wide, said = json.loads(ran.stdout)
    assert 0 < high <= min(num_pages, 4_000)
    assert 0 < grid_high <= 32_000
    assert 0 < grid_wide <= 6_000
    assert "One picture for 7 operations" in said["textContent"]
    assert ("One line for" in said["textContent"] or "one line for" in said["textContent"]) == (num_pages > 4_000)
