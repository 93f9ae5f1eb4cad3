"""The oracle over whole engines: what it asks, what it finds, what it tells, and how it ends with bad engines."""

import functools
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.conformance.catalogue import SERVED_BUGS
from kvproof.conformance.cli import main
from kvproof.conformance.engine.small import small_engine
from kvproof.conformance.oracle.answers import Answer, UnreadableError, read_answers
from kvproof.conformance.oracle.consistency import contradictions, difference
from kvproof.conformance.oracle.http_engine import HttpEngine, read_completion
from kvproof.conformance.oracle.judging import Judgement, Plan, judge
from kvproof.conformance.oracle.performing import Exchange, History
from kvproof.conformance.oracle.python_engine import PythonEngine
from kvproof.conformance.oracle.relations import RELATIONS, Sizes
from kvproof.conformance.oracle.scripts import Ask, Forget, Reset, Script, Wave, script_from_json
from kvproof.conformance.oracle.shrinking import shortened
from kvproof.spec import CLAUSES

from . import judged_engines
from .judged_engines import Cached, Noisy, Raising, TextEngine
from .small_server import Forward, Spoil, proxied, running, served

ENGINES = "tests.conformance.judged_engines"


# -- Our own engine, and faults at its boundary ---------------------------------------------------------------------


def judged(made: Any, **plan: Any) -> Judgement:
    return judge(PythonEngine(made, "engine", 60), Plan(**plan))


def test_our_engine_answers_alike_however_it_is_asked() -> None:
    """ENG-3 to ENG-15."""
    judgement = judged(functools.partial(small_engine, "kvproof.fast", "host pages"), scripts=1)
    assert judgement.ended == ""
    assert [str(found) for found in judgement.deviations] == []
    assert {report.verdict for report in judgement.reports} <= {"bit-exact", "within the bound"}
    assert [report.relation.name for report in judgement.reports] == list(RELATIONS)
    assert judgement.cached > 50
    assert judgement.bound < 1e-3


def test_faults_at_the_boundary_of_our_engine_are_found_in_few_requests() -> None:
    """Each by the relation that is about it; so the order of relations does not matter."""
    assert len(SERVED_BUGS) >= 20
    requests, missed = {}, []
    for name, bug in SERVED_BUGS.items():
        engine = functools.partial(small_engine, f"kvproof.conformance.catalogue:{name}", *bug.setups)
        judgement = judged(engine, scripts=8, relations=(bug.machine,), tolerance=1e-3, tries=6)
        if not {found.clause for found in judgement.deviations} & bug.clauses:
            missed.append((name, judgement.ended, judgement.deviations))
        else:
            requests[name] = judgement.deviations[0].script.num_requests
    assert missed == []
    assert median(requests.values()) <= 4, requests


# -- Faults of a proxy before a server ------------------------------------------------------------------------------


def drops_the_beginning(body: dict[str, Any], forward: Forward) -> Any:
    """A long prompt is cut to what the proxy holds to be the context."""
    return forward(body | {"prompt": body["prompt"][-30:]})


def drops_the_last_token_of_whole_pages(body: dict[str, Any], forward: Forward) -> Any:
    prompt = body["prompt"]
    return forward(body | {"prompt": prompt[:-1] if len(prompt) > 8 and len(prompt) % 16 == 0 else prompt})


def answers_from_a_cache_of_beginnings() -> Spoil:
    known: dict[Any, Any] = {}

    def spoil(body: dict[str, Any], forward: Forward) -> Any:
        key = (tuple(body["prompt"][:4]), body["max_tokens"], body.get("n"))
        if len(body["prompt"]) > 4 and key not in known:
            known[key] = forward(body)
        return known.get(key) or forward(body)

    return spoil


def swaps_concurrent_answers() -> Spoil:
    here: list[int] = []

    def spoil(body: dict[str, Any], forward: Forward) -> Any:
        here.append(1)
        try:
            together = forward(body) if len(here) == 1 else None
            return together or forward(body | {"prompt": [*body["prompt"][1:], 1]})
        finally:
            here.pop()

    return spoil


def leaves_out_salts(body: dict[str, Any], forward: Forward) -> Any:
    return forward({name: value for name, value in body.items() if name != "cache_salt"})


def leaves_out_salts_of_copies(body: dict[str, Any], forward: Forward) -> Any:
    return leaves_out_salts(body, forward) if "n" in body else forward(body)


class LooksCopiesUpWithoutSalts:
    """Several answers are served from what was computed without a salt, which leaves nothing under their own."""

    def __init__(self, counts_the_last: bool, resets: bool = True) -> None:
        self._counts_the_last, self.resets = counts_the_last, resets
        self.forget()

    def forget(self) -> None:
        self._known: set[tuple[int, ...]] = set()

    def __call__(self, body: dict[str, Any], forward: Forward) -> Any:
        prompt, copies = tuple(body["prompt"]), "n" in body
        if "cache_salt" not in body:
            self._known.add(prompt)
        answer = leaves_out_salts(body, forward) if copies and prompt in self._known else forward(body)
        if copies and self._counts_the_last:  # which finds what the first has computed
            answer["usage"]["prompt_tokens_details"]["cached_tokens"] = (len(prompt) - 1) // 4 * 4
        return answer


def gives_copies_other_logprobs(body: dict[str, Any], forward: Forward) -> Any:
    answer = forward(body)
    for choice in answer["choices"][1:]:
        choice["logprobs"]["token_logprobs"][-1] -= 0.5
    return answer


def shifts_logprobs_of_the_second_time() -> Spoil:
    seen: set[tuple[int, ...]] = set()

    def spoil(body: dict[str, Any], forward: Forward) -> Any:
        answer, key = forward(body), tuple(body["prompt"])
        if key in seen and len(key) > 2:
            for choice in answer["choices"]:
                choice["logprobs"]["token_logprobs"][0] -= 0.25
        seen.add(key)
        return answer

    return spoil


def hangs_up_at_long_prompts(body: dict[str, Any], forward: Forward) -> Any:
    return forward(body) if len(body["prompt"]) < 16 else None


PROXIES: dict[str, tuple[Spoil, set[str]]] = {
    "drops_the_beginning": (drops_the_beginning, {"ENG-13", "ENG-15", "ENG-4"}),
    "drops_the_last_token": (drops_the_last_token_of_whole_pages, {"ENG-13", "ENG-15"}),
    "caches_beginnings": (answers_from_a_cache_of_beginnings(), {"ENG-4", "ENG-7", "ENG-9", "ENG-10"}),
    "swaps_answers": (swaps_concurrent_answers(), {"ENG-5", "ENG-6", "ENG-7", "ENG-10"}),
    "leaves_out_salts": (leaves_out_salts, {"ENG-12"}),
    "leaves_out_salts_of_copies": (leaves_out_salts_of_copies, {"ENG-12"}),
    "looks_copies_up_without_salts": (LooksCopiesUpWithoutSalts(False), {"ENG-12"}),
    "looks_copies_up_and_counts_the_last": (LooksCopiesUpWithoutSalts(True), {"ENG-12"}),
    "looks_copies_up_and_is_never_reset": (LooksCopiesUpWithoutSalts(True, resets=False), {"ENG-12"}),
    "other_copies": (gives_copies_other_logprobs, {"ENG-11"}),
    "shifted_when_warm": (shifts_logprobs_of_the_second_time(), {"ENG-3"}),
    "hangs_up": (hangs_up_at_long_prompts, {"ENG-2"}),
}


RACING = {"caches_beginnings", "swaps_answers"}
"""Those whose faults depend on which of some requests at once comes first: their scripts may not get short."""


COUNTED = {name for name in PROXIES if name.startswith("looks_copies_up")}
"""Those that show in counts alone, beside the counts of the same requests where nobody else came before."""


def judged_server(url: str, **plan: Any) -> Judgement:
    subject = HttpEngine(url, 10)
    subject.facts = subject.facts.__class__(**{**subject.facts.__dict__, "page_size": 4, "max_model_len": 64})
    return judge(subject, Plan(**plan))


def test_a_server_conforms() -> None:
    """ENG-3 to ENG-15, as far as it has what they need."""
    with served(TextEngine()) as url:
        judgement = judged_server(url, scripts=2)
    assert (judgement.ended, judgement.deviations) == ("", [])
    assert judgement.facts.offers >= {"n", "cache_salts", "reset", "abort_after", "cached_tokens"}
    assert judgement.facts.vocab_size == 16, "the first size that is tried and taken"
    lacking = {report.relation.name for report in judgement.reports if report.lacks}
    assert lacking == set()


@pytest.mark.parametrize("name", PROXIES)
def test_faults_of_a_proxy_are_found(name: str) -> None:
    spoil, clauses = PROXIES[name]
    with served(TextEngine()) as url, proxied(url, spoil) as proxy:
        asked = ("copies",) if name in COUNTED else tuple(RELATIONS)
        judgement = judged_server(proxy, scripts=6, first=True, relations=asked)
    assert judgement.deviations, judgement.ended
    found = judgement.deviations[0]
    assert found.clause in clauses, found
    if name not in RACING:
        assert found.script.num_requests <= (7 if name in COUNTED else 3), found.script.lines()


def test_our_engine_behind_a_server() -> None:
    with served(small_engine()) as url:
        judgement = judged_server(url, scripts=4, relations=("warm", "batch", "copies", "keys"))
    assert (judgement.ended, judgement.deviations) == ("", [])
    assert judgement.cached > 0


# -- Bad engines ----------------------------------------------------------------------------------------------------


def bare(body: dict[str, Any], forward: Forward) -> Any:
    answer = forward(body)
    for choice in answer["choices"]:
        choice["logprobs"]["tokens"] = ["word"] * len(choice["logprobs"]["tokens"])
    return answer


def without_logprobs(body: dict[str, Any], forward: Forward) -> Any:
    answer = forward(body)
    return {"choices": [{"text": "", "logprobs": None, "token_ids": [1]} for _ in answer["choices"]]}


def cut_short(body: dict[str, Any], forward: Forward) -> Any:
    return json.dumps(forward(body)).encode()[:-9]


def drop_by_drop(body: dict[str, Any], forward: Forward) -> Any:
    """Bytes come as long as somebody reads them: no single wait is long, the whole answer never ends."""

    def drops() -> Iterator[bytes]:
        for _ in range(400):
            time.sleep(0.05)
            yield b" "

    return drops() if forward(body) else None


def hanging(body: dict[str, Any], forward: Forward) -> Any:
    time.sleep(5)
    return forward(body)


def sampling() -> Spoil:
    """Tokens are drawn, whatever the temperature."""
    draw = random.Random(0)

    def spoil(body: dict[str, Any], forward: Forward) -> Any:
        answer = forward(body)
        for choice in answer["choices"]:
            number = len(choice["logprobs"]["tokens"])
            drawn = [draw.randrange(16) for _ in range(number)]
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in drawn],
                "token_logprobs": [-1.0 - token / 4 for token in drawn],
            }
        return answer

    return spoil


def of_another_vocabulary(body: dict[str, Any], forward: Forward) -> Any:
    """The model has fewer tokens than any size that is tried."""
    return forward(body) if max(body["prompt"]) < 3 else forward(body | {"prompt": [99]})


def odd_numbers(body: dict[str, Any], forward: Forward) -> Any:
    answer = forward(body)
    for choice in answer["choices"]:
        choice["logprobs"]["token_logprobs"] = [0.5 for _ in choice["logprobs"]["tokens"]]
    return answer


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop_by_drop, "no answer within 1 s"),
        (hanging, "no answer within 1 s"),
        (sampling(), "it samples, though the temperature is 0"),
        (of_another_vocabulary, "refuses prompts of token ids: status 400"),
        (odd_numbers, "0.5 is no log-probability"),
        (lambda *_: {"choices": "none"}, "no list of choices"),
        (lambda *_: b"<html>busy</html>", "the server answers no JSON"),
        (bare, "the server answers no token ids"),
        (without_logprobs, "the server answers no log-probabilities"),
        (cut_short, "the server answers no JSON"),
        (lambda *_: None, "the connection broke"),
        (lambda *_: b'data: {"choices": []}\n\ndata: [DONE]\n\n', "answers in pieces, as streams are"),
        (lambda *_: {"error": "loading"}, "no list of choices: 'loading'"),
    ],
)
def test_a_server_that_cannot_be_judged_is_told_in_a_line(
    spoil: Spoil, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(TextEngine()) as url, proxied(url, spoil) as proxy:
        assert main(["serve-check", "--url", proxy, "--seed", "1", "--timeout", "1"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda *_: (401, {"error": "no key"}), "wants a key, and none is sent: status 401"),
        (lambda path, _: (200, {"data": []}) if path == "/v1/models" else (400, {}), "(it is empty); name one"),
        (lambda path, _: (200, {"data": [{"id": "m"}]}) if path == "/v1/models" else (404, {}), "has no /completions"),
        (lambda path, _: (200, {"data": [{"id": "m"}]}) if path == "/v1/models" else (503, {}), "is busy: status 503"),
    ],
    ids=["key", "models", "chat", "busy"],
)
def test_a_server_that_cannot_be_asked_is_told_in_a_line(
    answer: Callable[[str, Any], Any], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(answer) as url:
        assert main(["serve-check", "--url", url, "--seed", "1"]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert "nothing makes a request cold" not in said.out


def test_an_address_without_its_v1_is_told_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with served(TextEngine()) as url:
        assert main(["serve-check", "--url", url.removesuffix("v1"), "--seed", "1"]) == 2
    assert f"did you mean {url}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "refused", [{"seed"}, {"logprobs"}, {"seed", "logprobs"}], ids=lambda refused: " and ".join(sorted(refused))
)
def test_a_server_that_refuses_some_fields_is_asked_without(refused: set[str]) -> None:
    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        if path != "/v1/completions" or ("seed" in body and "seed" in refused):
            return 400, {}
        if "logprobs" in refused and body["logprobs"] > 1:
            return 400, {}
        names = [f"token_id:{token}" for token in range(body["max_tokens"])]
        logprobs = {"tokens": names, "token_logprobs": [-1.0] * len(names)}
        return 200, {"choices": [{"text": "", "logprobs": logprobs}]}

    with running(answer) as url:
        assert (
            judge(HttpEngine(url, 5.0), Plan(seed=1, scripts=1, relations=("warm",))).reports[0].verdict == "bit-exact"
        )


@pytest.mark.parametrize("end", [lambda *_: None, hanging], ids=["dies", "hangs"])
def test_a_server_that_is_lost_amid_a_run_is_a_verdict(
    end: Spoil, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """ENG-2: the verdicts that came before stand in the report, and why it ended."""
    turns = itertools.count()

    def spoil(body: dict[str, Any], forward: Forward) -> Any:
        return forward(body) if next(turns) < 150 else end(body, forward)

    file = tmp_path / "report.json"
    with served(TextEngine()) as url, proxied(url, spoil) as proxy:
        options = ["--page-size", "4", "--max-model-len", "64", "--seed", "1", "--json", str(file), "--timeout", "1"]
        assert main(["serve-check", "--url", proxy, *options]) == 1
    report = json.loads(file.read_text())
    assert "lost for good" in report["ended"]
    assert [one["verdict"] for one in report["relations"]][-1:] == ["deviates"]
    assert len(report["relations"]) > 1
    said = capsys.readouterr()
    assert "ENG-2 broken" in said.out
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda *_: b'{"choices": [', "the server answers no JSON"),
        (bare, "the server answers no token ids"),
        (without_logprobs, "the server answers no log-probabilities"),
        (of_another_vocabulary, "it refuses by now what it answered at first: status 400"),
    ],
    ids=["truncated", "no token ids", "no log-probabilities", "another vocabulary"],
)
def test_what_was_learnt_is_kept_where_a_server_breaks_off(
    spoil: Spoil, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = itertools.count()

    def spoilt(body: dict[str, Any], forward: Forward) -> Any:
        return forward(body) if next(turns) < 150 else spoil(body, forward)

    file = tmp_path / "report.json"
    with served(TextEngine()) as url, proxied(url, spoilt) as proxy:
        options = ["--page-size", "4", "--max-model-len", "64", "--seed", "1", "--json", str(file)]
        assert main(["serve-check", "--url", proxy, *options]) == 2
    report = json.loads(file.read_text())
    assert says in report["ended"]
    assert [one["verdict"] for one in report["relations"]][:1] == ["bit-exact"]
    assert report["deviations"] == []
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert "ENG-3  warm          bit-exact" in said.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--url", "ftp://x"], "--url ftp://x must be like"),
        (["--url", "http://127.0.0.1:9/v1"], "the connection broke"),
        (["--engine", "kvproof.spec"], "must be like module:attribute"),
        (["--engine", f"{ENGINES}:no_engine"], "has no method generate"),
        (["--engine", f"{ENGINES}:nothing"], "no attribute 'nothing'"),
        (["--engine", f"{ENGINES}:Silent"], "the engine answers no log-probabilities"),
        (["--engine", f"{ENGINES}:Sampling"], "it samples, though the temperature is 0"),
        (["--engine", f"{ENGINES}:Even"], "asked the same 3 times it answers 3 texts: it samples"),
        (["--engine", f"{ENGINES}:Asynchronous"], "must be a list, not coroutine: an async function has to be run"),
        (["--engine", f"{ENGINES}:Numberless"], "gives its own token the log-probability nan"),
        (["--engine", f"{ENGINES}:Unresettable"], "its prefix cache can't be reset: RuntimeError: not now"),
        (["--engine", f"{ENGINES}:Wide"], "a plain request is not answered: IndexError: embedding"),
        (["--engine", "a:b", "--url", "http://x"], "not for one run"),
        (["--engine", "a:b", "--layout", "v2"], "--layout v2 says nothing with --engine or --url"),
        (["--engine", "a:b", "--served-model", "x"], "--served-model x says nothing with --engine"),
        (["--engine", "a:b", "--script", "x", "--first"], "--first says nothing with --script"),
        (["--engine", "a:b", "--timeout", "0"], "--timeout 0"),
        (["--engine", "a:b", "--tolerance", "-1"], "--tolerance -1"),
        (["--engine", "a:b", "--relations", "warm,odd"], "no odd"),
        (["--engine", "a:b", "--offers", "wings"], "no wings"),
        (["--engine", "a:b", "--emit", "test.txt"], "must end in .py"),
        (["--engine", "a:b", "--json", "/no/such/folder/x"], "/no/such/folder/x"),
        (["--engine", "a:b", "--script", "/no/such/file"], "/no/such/file"),
        (["--engine", f"{ENGINES}:given", "--chunk", "0"], "chunk=0 must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-check", *options]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1


def test_an_engine_that_cannot_be_made_is_told_and_its_environment_is_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    assert main(["serve-check", "--engine", f"{ENGINES}:Unmade"]) == 2
    said = capsys.readouterr().err
    assert "no engine can be made: ValueError: flags None" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Lazy", "Lazy: offers"),
        ("Short", "requests have at most 50 tokens, as longer ones are refused: IndexError: position 50"),
    ],
)
def test_odd_engines_that_answer_alike_conform(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--seed", "1", "--schedules", "1", "--relations", "warm,chunks,pressure,lengths"]
    assert main(["serve-check", "--engine", f"{ENGINES}:{name}", *options]) == 0
    said = capsys.readouterr().out
    assert says in said
    assert said.count("bit-exact (1 script)") == 4


@pytest.mark.parametrize(("name", "says"), [("Hanging", "no answer within 1 s"), ("Dying", "process died (7)")])
def test_an_engine_that_hangs_or_dies_is_a_verdict(
    name: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """ENG-2; the engine is started again, and judged on."""
    file = tmp_path / "report.json"
    options = ["--seed", "1", "--schedules", "1", "--relations", "warm,batch,reset", "--json", str(file)]
    assert main(["serve-check", "--engine", f"{ENGINES}:{name}", "--timeout", "1", *options]) == 1
    said = capsys.readouterr().out
    assert "ENG-2 broken, shown by batch in 2 requests" in said
    assert says in said
    verdicts = {one["relation"]: one["verdict"] for one in json.loads(file.read_text())["relations"]}
    assert verdicts == {"warm": "bit-exact", "batch": "deviates", "reset": "bit-exact"}


def test_a_fault_is_told_shortly_and_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """ENG-3: as lines, as JSON that is asked again, and as a test that fails."""
    report, test = tmp_path / "report.json", tmp_path / "test_found.py"
    engine = ["--engine", f"{ENGINES}:Cached"]
    options = ["--seed", "1", "--relations", "warm", "--json", str(report), "--emit", str(test)]
    assert main(["serve-check", *engine, *options]) == 1
    said = capsys.readouterr().out
    assert "ENG-3 broken, shown by warm in 2 requests" in said
    assert f"again: kvproof serve-check --engine {ENGINES}:Cached --relations warm" in said
    assert main(["serve-check", *engine, "--script", str(report)]) == 1
    assert "script 0: expected token" in capsys.readouterr().out
    assert main(["serve-check", "--engine", f"{ENGINES}:TextEngine", "--script", str(report)]) == 0
    for source, status in ((test.read_text(), 1), (test.read_text().replace(":Cached", ":TextEngine"), 0)):
        test.write_text(source)
        run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)], check=False,
                             capture_output=True, text=True)  # fmt: skip
        assert run.returncode == status, run.stdout + run.stderr


class Tuned(TextEngine):
    """An engine with an adapter, which may answer all requests that come at once by that of the first."""

    adapters = ("tuned",)
    confuses, adapter = False, ""

    def generate(
        self, prompts: Any, max_tokens: int, *, n: int = 1, cache_salts: Any = None, adapters: Any = None
    ) -> Any:
        answers, salts = [], cache_salts or [None] * len(prompts)
        for prompt, salt, name in zip(prompts, salts, adapters or [None] * len(prompts), strict=True):
            self.adapter = (adapters[0] if self.confuses and adapters else name) or ""
            answers += super().generate([prompt], max_tokens, n=n, cache_salts=[f"{salt or ''}/{self.adapter}"])
        return answers

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        return super().following([len(self.adapter), *text])


def test_adapters_that_are_confused_in_a_batch_are_found() -> None:
    """ENG-5: one request at a time each adapter is right."""

    class Confused(Tuned):
        confuses = True

    assert judged(Tuned, scripts=2).deviations == []
    found = {one.clause: one.script.num_requests for one in judged(Confused, relations=("batch", "keys")).deviations}
    assert found == {"ENG-5": 3}


class Far:
    """Some arithmetic that goes on from the states of earlier texts, by positions of 16 bits if it is bad."""

    page_size, vocab_size, max_model_len = 16, 997, 33_000
    is_bad = False

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.states: dict[int, int] = {}

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[tuple[list[int], list[float]]]:
        return [self._answer(list(prompt), max_tokens) for prompt in prompts]

    def _answer(self, text: list[int], max_tokens: int) -> tuple[list[int], list[float]]:
        length = len(text)
        ends = list(range(max(16, length // 16 * 16 - 64), length, 16))
        known = [(end, self.states[key]) for end in ends if (key := hash(tuple(text[:end]))) in self.states]
        start, state = known[-1] if known else (0, 0)
        for position in range(start, length + max_tokens):
            if position in ends:
                self.states[hash(tuple(text[:position]))] = state
            if position >= length:
                text.append(state % 997)
            wrapped = self.is_bad and start and position > 32_767
            state = (state * 31 + text[position] + position - 65_536 * bool(wrapped)) % 1_000_003
        return text[length:], [-1 - token / 997 for token in text[length:]]


def test_positions_of_16_bits_are_looked_at() -> None:
    """ENG-15, where the engine takes prompts as long."""

    class Short(Far):
        is_bad = True

    assert judged(Far, scripts=2, relations=("lengths",)).deviations == []
    (found,) = judged(Short, scripts=2, relations=("lengths",), tries=10).deviations
    assert found.clause == "ENG-15"
    assert max(len(ask.prompt) for ask in found.script.asks) > 32_760


def test_a_refusal_that_depends_on_what_came_before_is_a_fault() -> None:
    """ENG-2."""
    (found,) = judged(Raising, scripts=12, relations=("warm",)).deviations
    assert (found.clause, found.script.num_requests) == ("ENG-2", 2)


def test_copies_that_find_what_another_salt_left_are_a_fault() -> None:
    """ENG-12: the pages are right, and only the count says whose they were."""

    class Shared(TextEngine):
        def generate(self, prompts: Any, max_tokens: int, *, n: int = 1, cache_salts: Any = None) -> Any:
            left = [set().union(*self.texts.values()) for _ in prompts]
            answers = super().generate(prompts, max_tokens, n=n, cache_salts=cache_salts)
            for own, prompt, pages in zip(answers, prompts, left, strict=True):
                found = [end for end in range(4, len(prompt), 4) if tuple(prompt[:end]) in pages]
                for answer in own if n > 1 else []:
                    answer["cached_tokens"] = max(found, default=0)
            return answers

    (found,) = judged(Shared, relations=("copies",)).deviations
    assert found.clause == "ENG-12"
    assert found.script.num_requests == 2


# -- Noise ----------------------------------------------------------------------------------------------------------


def test_noise_is_measured_and_no_fault() -> None:
    judgement = judged(Noisy, scripts=3)
    assert 0.001 < judgement.noise.alone <= Noisy.size
    assert judgement.deviations == []
    assert {report.verdict for report in judgement.reports if not report.lacks} == {"within the bound"}


def test_a_fault_shows_through_noise() -> None:
    class Both(Noisy):
        def generate(self, *arguments: Any, **options: Any) -> Any:
            answers = super().generate(*arguments, **options)
            for answer, *_ in answers:
                if answer["cached_tokens"] >= 8:
                    answer["logprobs"][-1] -= 0.3
            return answers

    assert {found.clause for found in judged(Both, relations=("warm",)).deviations} == {"ENG-3"}


def test_tokens_may_differ_where_they_tie() -> None:
    one = Answer((1, 2), (-1.0, -1.5), ({1: -1.0}, {2: -1.5, 3: -1.501}), (1, 2))
    tie = Answer((1, 3), (-1.0, -1.5), ({1: -1.0}, {3: -1.5, 2: -1.501}), (1, 3))
    far = Answer((1, 3), (-1.0, -1.2), ({1: -1.0}, {3: -1.2, 2: -1.6}), (1, 3))
    assert difference(one, tie, 0.01, 2) is None
    for other, bound in ((tie, 0.0), (far, 0.01), (Answer((1, 9), (-1.0, -1.5), ({1: -1.0}, {9: -1.5}), (1, 9)), 0.01)):
        found = difference(one, other, bound, 2)
        assert found is not None
        assert found.position == 1
    assert difference(one, Answer((1,), (float("nan"),)), 0.01, 2) is not None


def test_an_answer_that_ends_sooner_is_another_one() -> None:
    """Where nobody had to end, and what comes next is not as likely as the end might be."""
    whole, short = Answer((1, 2, 3), (-0.1, -0.1, -0.1)), Answer((1, 2), (-0.1, -0.1))
    found = difference(whole, short, 0.0, 3)
    assert found is not None
    assert (found.position, found.observed) == (2, "the end")
    assert difference(short, whole, 0.01, 3) is not None
    assert difference(whole, short, 0.0, 2) is None, "as many as were asked for"
    assert difference(whole, replace(short, whole=False), 0.0, 3) is None
    assert difference(replace(whole, logprobs=(-0.1, -0.1, -0.7)), short, 0.01, 3) is None, "the end may be as likely"
    assert difference(replace(whole, logprobs=(-0.1, -0.1, -0.7)), short, 1e-5, 3) is not None


def test_an_engine_that_rounds_otherwise_in_other_shapes_conforms() -> None:
    """As llama.cpp's does: the same prompt gives the same bits, the same text cut elsewhere does not."""

    class Shaped(TextEngine):
        def generate(self, prompts: Any, *arguments: Any, **options: Any) -> Any:
            answers = super().generate(prompts, *arguments, **options)
            for own, prompt in zip(answers, prompts, strict=True):
                for answer in own:
                    cut = len(prompt) - answer["cached_tokens"]
                    off = [random.Random(f"{cut} {place}").random() / 50 for place in range(len(answer["logprobs"]))]
                    answer["logprobs"] = [value - by for value, by in zip(answer["logprobs"], off, strict=True)]
            return answers

    judgement = judged(Shaped, scripts=2)
    assert judgement.noise.alone == 0
    assert 0.001 < judgement.noise.shapes <= 0.02
    assert judgement.deviations == []


def test_noise_of_long_computations_alone_is_measured() -> None:
    """As llama.cpp's: 64 tokens computed at once, and fewer, come out by up to 0.2 apart, which is much for noise."""

    class Tiled(TextEngine):
        tile = 12

        def generate(self, prompts: Any, *arguments: Any, **options: Any) -> Any:
            answers = super().generate(prompts, *arguments, **options)
            for own, prompt in zip(answers, prompts, strict=True):
                for answer in own:
                    computed = len(prompt) - answer["cached_tokens"]
                    if computed >= self.tile:
                        draw = random.Random(f"{computed} {prompt}")
                        answer["logprobs"] = [value - 0.2 * draw.random() for value in answer["logprobs"]]
            return answers

    judgement = judged(Tiled, scripts=2)
    assert 0.05 < judgement.noise.shapes <= 0.1
    assert judgement.deviations == []


# -- Parts ----------------------------------------------------------------------------------------------------------

SIZES = st.builds(
    Sizes,
    page=st.integers(1, 9),
    answer=st.integers(1, 6),
    longest=st.integers(1, 60),
    low=st.just(2),
    vocabulary=st.integers(4, 40),
    chunk=st.sampled_from([0, 7]),
    window=st.sampled_from([0, 5]),
    pool=st.sampled_from([0, 40]),
    adapters=st.sampled_from([(), ("a",), ("a", "b", "c")]),
    offers=st.sampled_from(
        [frozenset(), frozenset({"cache_salts"}), frozenset({"forgets", "cache_salts", "abort_after"})]
    ),
)


@given(SIZES, st.sampled_from(list(RELATIONS)), st.integers(0, 20), st.integers(0, 2**32))
@settings(max_examples=150)
def test_scripts_fit_the_engine_and_come_back_from_json(sizes: Sizes, name: str, number: int, seed: int) -> None:
    script = RELATIONS[name].draw(random.Random(seed), sizes, number)
    assert script == RELATIONS[name].draw(random.Random(seed), sizes, number)
    assert script_from_json(json.loads(json.dumps(script.as_json()))) == script
    names = [ask.name for ask in script.asks]
    assert len(set(names)) == len(names)
    known: dict[str, int] = {}
    for ask in script.asks:
        before = known[ask.follows] + ask.taken if ask.follows else 0
        known[ask.name] = before + len(ask.prompt)
        assert 0 < known[ask.name] <= sizes.longest
        assert all(sizes.low <= token < sizes.vocabulary for token in ask.prompt)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        [3],
        [{"do": "jump"}],
        [{"do": "ask", "requests": [], "max_tokens": 1}],
        [{"do": "ask", "requests": [{"name": "a", "prompt": [1]}]}],
        [{"do": "ask", "requests": [{"name": "a", "prompt": [-1]}], "max_tokens": 1}],
        [{"do": "ask", "requests": [{"name": "a", "prompt": [True]}], "max_tokens": 1}],
        [{"do": "ask", "requests": [{"name": "a", "prompt": [1], "run": "x"}], "max_tokens": 1}],
        [{"do": "ask", "requests": [{"prompt": [1]}], "max_tokens": 1}],
        [{"do": "ask", "requests": [{"name": "a", "prompt": [1], "taken": "x"}], "max_tokens": 1}],
    ],
)
def test_what_is_no_script_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"script|step|request|prompt|max_tokens"):
        script_from_json(document)


def test_a_script_gets_as_short_as_its_fault() -> None:
    wave = Wave((Ask("n", (5, 5)), Ask("a", (1, 2, 3, 4, 5, 6)), Ask("m", (7,))), 8, n=2)
    later = Wave((Ask("b", (3,), follows="a", taken=2, salt="s"),), 8)
    script = Script((wave, Forget(), Reset(), later, wave))

    def shows(tried: Script) -> str | None:
        asks = list(tried.asks)
        return "shown" if any(len(ask.prompt) > 2 for ask in asks) and any(ask.follows for ask in asks) else None

    short, _ = shortened(script, "shown", shows, 200)
    assert short == Script((Wave((Ask("a", short.steps[0].asks[0].prompt),), 1), Wave((Ask("b", (3,), "a", 2),), 1)))  # type: ignore[union-attr]
    assert len(next(short.asks).prompt) == 3
    assert shortened(script, "shown", shows, 0) == (script, "shown")


@pytest.mark.parametrize(
    "given_answer",
    [
        ([1, 2], [-1.0, -2.0]),
        {"token_ids": [1, 2], "logprobs": [-1.0, -2.0]},
        {"tokens": [1, 2], "logprobs": [{1: -1.0, 3: -4.0}, {2: -2.0}], "cached_tokens": 3},
        [{"token_ids": (1, 2), "logprobs": (-1.0, -2.0)}],
        {"outputs": [{"token_ids": [1, 2], "logprobs": [-1, -2]}], "num_cached_tokens": 3},
    ],
)
def test_answers_come_in_many_forms(given_answer: Any) -> None:
    ((answer,),) = read_answers([given_answer], 1, 1)
    assert (answer.tokens, answer.logprobs) == ((1, 2), (-1.0, -2.0))


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ("text", "must be a list"),
        ([], "0 results for 1 prompts"),
        ([{"logprobs": []}], "no token ids"),
        ([{"token_ids": [1]}], "no log-probabilities"),
        ([([1], [-1.0, -2.0])], "1 token ids and 2 log-probabilities"),
        ([(["a"], [-1.0])], "'a' is no token id"),
        ([([1], ["a"])], "'a' is no log-probability"),
        ([([1], [0.5])], "0.5 is no log-probability"),
        ([([1], [{2: -1.0}])], "no log-probability of its own token 1"),
        ([{"token_ids": [1], "logprobs": [-1.0], "cached_tokens": -1}], "is no number of tokens"),
    ],
)
def test_answers_that_make_no_sense_are_told(answers: Any, says: str) -> None:
    with pytest.raises(UnreadableError, match=says):
        read_answers(answers, 1, 1)


def test_an_answer_may_end_at_once() -> None:
    (answer,) = read_completion({"choices": [{"text": "", "finish_reason": "stop", "logprobs": None}]}, 1, 8, 2)
    assert answer.tokens == ()


def test_nothing_is_compared_with_an_answer_of_which_tokens_are_left_out() -> None:
    """As llama.cpp's server leaves out those that are a part of a character."""
    (answer,) = read_completion({"choices": [entries(1)], "usage": {"completion_tokens": 2}}, 1, 8, 2)
    (other,) = read_completion({"choices": [{"text": "\ufffd", "logprobs": None}]}, 1, 8, 2)
    assert answer.tokens == other.tokens == ()
    assert read_completion({"choices": [entries(1, 2)], "usage": {"completion_tokens": 2}}, 1, 8, 2)[0].tokens == (1, 2)


def test_a_deviation_is_told_where_shorter_scripts_make_no_sense() -> None:
    """An engine that gives long answers only: whatever is tried to make the script short, what was shown is kept."""

    class Curt(Cached):
        def generate(self, prompts: Any, max_tokens: int, **options: Any) -> Any:
            answers = super().generate(prompts, max_tokens, **options)
            for answer, *_ in answers:
                answer["logprobs"] = answer["logprobs"] if max_tokens == 8 else None
            return answers

    (found,) = judged(Curt, relations=("warm",), tolerance=0.0).deviations
    assert (found.clause, found.script.num_requests) == ("ENG-3", 2)


def entries(*ids: int) -> dict[str, Any]:
    content = [
        {"id": token, "token": "x", "logprob": -1.0, "top_logprobs": [{"id": 9, "logprob": -2.0}]} for token in ids
    ]
    return {"logprobs": {"content": content}}


@pytest.mark.parametrize(
    "choice",
    [
        entries(4, 5),
        {"token_ids": [4, 5], "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0, -1.0]}},
        {"logprobs": {"tokens": ["token_id:4", "token_id:5"], "token_logprobs": [-1.0, -1.0], "top_logprobs": None}},
        {"tokens": [4, 5], "logprobs": {"token_logprobs": [-1.0, -1.0]}},
    ],
)
def test_servers_put_token_ids_in_many_places(choice: Any) -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 2}}
    (answer,) = read_completion({"choices": [choice], "usage": usage}, 1, 8, 2)
    assert (answer.tokens, answer.logprobs, answer.cached) == ((4, 5), (-1.0, -1.0), 2)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "no list of choices"),
        ({"choices": []}, "0 choices, 1 were asked for"),
        ({"choices": [{"token_ids": [1]}]}, "no log-probabilities"),
        ({"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}}]}, "no token ids"),
        ({"choices": [{"logprobs": {"tokens": ["token_id:x"], "token_logprobs": [-1.0]}}]}, "is no token id"),
        ({"choices": [entries(1, 2, 3)]}, "3 tokens, 2 were asked for"),
        ({"choices": [entries(1)], "usage": {"prompt_tokens_details": {"cached_tokens": 99}}}, "99 tokens of a prompt"),
    ],
)
def test_servers_that_make_no_sense_are_told(document: Any, says: str) -> None:
    with pytest.raises(UnreadableError, match=says):
        read_completion(document, 1, 8, 2)


def test_hits_on_what_is_another_tenants_are_contradictions() -> None:
    """ENG-12, ENG-9: also where the answers are the same."""

    def told(salt: str, epoch: int, cached: int) -> Callable[..., Any]:
        def exchange(name: str, wave: int) -> Exchange:
            return Exchange(
                Ask(name, (1, 2, 3, 4, 5), salt=salt), 1, (Answer((7,), (-1.0,), cached=cached),), wave, epoch, False
            )

        return exchange

    for first, second, clause in (
        (told("", 0, 0), told("", 0, 4), None),
        (told("s", 0, 0), told("", 0, 4), "ENG-12"),
        (told("", 0, 0), told("", 1, 4), "ENG-9"),
    ):
        history = History(Script(()), [first("a", 0), second("b", 1)], fresh=True)
        found = next(contradictions(history, 0.0), None)
        assert (None if found is None else found.clause) == clause


def test_every_relation_has_a_clause_of_its_own() -> None:
    clauses = [relation.clause for relation in RELATIONS.values()]
    assert clauses == [f"ENG-{number}" for number in range(3, 16)]
    assert set(clauses) <= set(CLAUSES)
    assert set(judged_engines.__all__) <= set(vars(judged_engines))
    assert Cached.vocab_size == TextEngine.vocab_size
