"""A tiny OpenAI-compatible server over any engine with ``generate``, and a proxy that stands before it."""

import contextlib
import hashlib
import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Forward", "Spoil", "TextEngine", "proxied", "running", "served"]

PAGE = 4

Forward = Callable[[dict[str, Any]], dict[str, Any]]
"""Hands a request on to the server; returns what it answers."""

Spoil = Callable[[dict[str, Any], Forward], Any]
"""What a proxy makes of a request: an object, or bytes as they are; None hangs up."""


class TextEngine:
    """An engine without a model: every answer follows from a digest of the whole text. It says what it found cached."""

    page_size, max_model_len, vocab_size = PAGE, 64, 32

    def __init__(self) -> None:
        self.texts: dict[str, set[tuple[int, ...]]] = {}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        n: int = 1,
        cache_salts: Sequence[str | None] | None = None,
    ) -> list[list[dict[str, Any]]]:
        answers = []
        for prompt, salt in zip(prompts, cache_salts or [None] * len(prompts), strict=True):
            if not prompt or max(prompt) >= self.vocab_size or len(prompt) + max_tokens > self.max_model_len:
                raise ValueError("the prompt can't be served")
            pages = self.texts.setdefault(salt or "", set())
            found = 0
            while found + PAGE < len(prompt) and tuple(prompt[: found + PAGE]) in pages:
                found += PAGE
            text, logprobs = list(prompt), []
            for _ in range(max_tokens):
                token, logprob = self.following(text)
                text.append(token)
                logprobs.append(logprob)
            pages |= {tuple(text[:end]) for end in range(PAGE, len(text), PAGE)}
            answer = {"token_ids": text[len(prompt) :], "logprobs": logprobs, "cached_tokens": found}
            answers.append([answer] * n)
        return answers

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        digest = hashlib.sha256(str(text).encode()).digest()
        return digest[0] % self.vocab_size, -digest[1] / 64

    def reset(self) -> None:
        self.texts.clear()


class _Handler(BaseHTTPRequestHandler):
    """Answers with what the server's ``answer`` gives for a path and a body."""

    server: Any

    def do_GET(self) -> None:
        self._send(self.server.answer(self.path, None))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._send(self.server.answer(self.path, json.loads(body or b"{}")))

    def _send(self, answer: tuple[int, Any] | None) -> None:
        if answer is None:
            self.close_connection = True
            return
        status, document = answer
        if isinstance(document, list):  # pieces of a stream
            document = b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in document)
        if isinstance(document, Iterator):  # drop by drop, and without an end that is known
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):
                for piece in document:
                    self.wfile.write(piece)
            return
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        with contextlib.suppress(OSError):  # whoever asked may be gone
            self.wfile.write(raw)

    def log_message(self, *args: Any) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer

    def handle_error(self, *args: Any) -> None:
        """Says nothing: faulty proxies break connections."""


@contextlib.contextmanager
def running(answer: Callable[[str, Any], Any]) -> Iterator[str]:
    """A server that answers a path and a body with a status and a document; gives its url."""
    server = _Server(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def served(engine: Any) -> Iterator[str]:
    """A server over an engine; gives its url. Requests that come together are answered by one call."""
    waiting: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while True:
            batch = [waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < 4:
                    batch.append(waiting.get(timeout=0.002))
            if any(one is None for one in batch):
                return
            _answer_all(engine, batch)

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"data": [{"id": "small"}]}
        if path == "/reset_prefix_cache":
            engine.reset()
            return 200, {}
        if path != "/v1/completions" or body.keys() & {"cache_prompt", "kvproof_no_such_field"}:
            return 404 if path != "/v1/completions" else 400, {"error": "unknown"}
        end: queue.Queue[tuple[int, Any]] = queue.Queue()
        waiting.put((body, end))
        return end.get()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        with running(answer) as url:
            yield url
    finally:
        waiting.put(None)
        thread.join()


def _answer_all(engine: Any, batch: list[Any]) -> None:
    """Answers requests, those that want the same in one call."""
    while batch:
        wants = [(body["max_tokens"], body.get("n", 1)) for body, _ in batch]
        own = [one for one, want in zip(batch, wants, strict=True) if want == wants[0]]
        batch = [one for one, want in zip(batch, wants, strict=True) if want != wants[0]]
        salts = [body.get("cache_salt") for body, _ in own]
        try:
            answers = engine.generate(
                [body["prompt"] for body, _ in own], wants[0][0], n=wants[0][1], cache_salts=salts
            )
        except ValueError as error:
            if len(own) > 1:  # whose fault it is shows when each is asked for alone
                for one in own:
                    _answer_all(engine, [one])
                continue
            own[0][1].put((400, {"error": str(error)}))
            continue
        for (body, end), several in zip(own, answers, strict=True):
            end.put((200, _completion(body, several)))


def _completion(body: dict[str, Any], several: list[Any]) -> Any:
    choices, cached = [], None
    for one in several:
        said: dict[str, Any] = one if isinstance(one, dict) else vars(one)
        tokens, logprobs, cached = said["token_ids"], said["logprobs"], said["cached_tokens"]
        if logprobs and isinstance(logprobs[0], dict):
            logprobs = [table[token] for token, table in zip(tokens, logprobs, strict=True)]
        names = [f"token_id:{token}" for token in tokens]
        choices.append({"text": "", "logprobs": {"tokens": names, "token_logprobs": logprobs}})
    if body.get("stream"):
        return [{"choices": choices}] * body["max_tokens"]
    return {"choices": choices, "usage": {"prompt_tokens_details": {"cached_tokens": cached}}}


@contextlib.contextmanager
def proxied(url: str, spoil: Spoil) -> Iterator[str]:
    """A proxy before a server, which spoils what goes through it; gives its url."""
    place = url.removeprefix("http://").removesuffix("/v1")

    def sent(path: str, body: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(place, timeout=30)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        return response.status, raw

    def answer(path: str, body: Any) -> tuple[int, Any] | None:
        if path == "/reset_prefix_cache":
            if not getattr(spoil, "resets", True):
                return 404, {"error": "unknown"}
            getattr(spoil, "forget", lambda: None)()
        if path != "/v1/completions" or body.get("stream"):
            return sent(path, body)

        def forward(changed: dict[str, Any]) -> dict[str, Any]:
            status, raw = sent(path, changed)
            if status != 200:
                raise _Refused(status, raw)
            document: dict[str, Any] = json.loads(raw)
            return document

        try:
            spoilt = spoil(body, forward)
        except _Refused as refused:
            return refused.args
        return None if spoilt is None else (200, spoilt)

    with running(answer) as proxy:
        yield proxy


class _Refused(Exception):
    args: tuple[int, Any]
