"""vLLM's requests, one for each of ours: it keeps tokens, extra keys and the keys of full pages in them."""

import functools
import hashlib
from typing import Any

from kvproof.spec.declarations import CacheSalt, LoraAdapter, MultimodalItem, PromptEmbeddings, Request

from .vllm import VLLM

__all__ = ["Requests"]

_EMPTY_SALT = hashlib.sha256(b"").digest()
_EMBEDDING_SIZE = 32

_STATUS = {"WAITING": "WAITING", "RUNNING": "RUNNING", "PREEMPTED": "PREEMPTED", "FINISHED": "FINISHED_STOPPED"}


class Requests:
    """Makes vLLM's requests and brings them up to date.

    Args:
        page_size: tokens in a page, as the keys are computed.
    """

    def __init__(self, page_size: Any) -> None:
        self._hasher = _hasher(page_size)
        self._known: dict[int, tuple[Request, Any]] = {}

    def of(self, request: Any) -> Any:
        """Gives vLLM's request for one of ours; other objects are handed on as they are."""
        if not isinstance(request, Request):
            return request
        _, theirs = self._known.setdefault(id(request), (request, None))
        if theirs is None:
            theirs = _made(request, self._hasher)
            self._known[id(request)] = request, theirs
        more = [int(token) for token in request.all_token_ids[theirs.num_tokens :]]
        if more:
            theirs.append_output_token_ids(more)
        theirs.num_computed_tokens = request.num_computed_tokens
        theirs.status = theirs.status.__class__[_STATUS[request.status.name]]
        return theirs


def _hasher(page_size: Any) -> Any:
    """What computes a request's keys; None for a page size of none, by which vLLM's own would never end."""
    sha256 = VLLM.module("vllm.utils.hashing").sha256
    utils = VLLM.module("vllm.v1.core.kv_cache_utils")
    _seed_keys()
    return utils.get_request_block_hasher(page_size, sha256) if isinstance(page_size, int) and page_size > 0 else None


@functools.cache
def _seed_keys() -> None:
    """An engine does this once, before its first request."""
    sha256 = VLLM.module("vllm.utils.hashing").sha256
    VLLM.module("vllm.v1.core.kv_cache_utils").init_none_hash(sha256)


def _made(request: Request, hasher: Any) -> Any:
    params = VLLM.module("vllm.sampling_params").SamplingParams
    return VLLM.module("vllm.v1.request").Request(
        request_id=request.request_id,
        prompt_token_ids=[int(token) for token in request.all_token_ids],
        sampling_params=params(prompt_logprobs=request.sampling_params.prompt_logprobs),
        pooling_params=None,
        block_hasher=hasher,
        **_extra_keys(request),
    )


def _extra_keys(request: Request) -> dict[str, Any]:
    """Extra keys where vLLM has places for them: it has none for the version of the weights, which don't arrive.

    We know a salt's fingerprint only, which is as good a salt as its text; the empty one stays empty.
    """
    made: dict[str, Any] = {"mm_features": _features(request)}
    for key in request.extra_keys:
        match key:
            case CacheSalt():
                made["cache_salt"] = "" if key.fingerprint == _EMPTY_SALT else key.fingerprint.hex()
            case LoraAdapter():
                lora = VLLM.module("vllm.lora.request").LoRARequest
                made["lora_request"] = lora(key.name, 1, f"/{key.name}")
    embeddings = [key for key in request.extra_keys if isinstance(key, PromptEmbeddings)]
    if embeddings:
        torch = VLLM.module("torch")
        made["prompt_embeds"] = torch.zeros(request.num_tokens, _EMBEDDING_SIZE, dtype=torch.uint8)
        for part in embeddings:
            row = torch.frombuffer(bytearray(hashlib.sha256(part.content).digest()), dtype=torch.uint8)
            made["prompt_embeds"][part.offset : part.offset + part.length] = row
    return made


def _features(request: Request) -> list[Any]:
    inputs = VLLM.module("vllm.multimodal.inputs")
    items = sorted((k for k in request.extra_keys if isinstance(k, MultimodalItem)), key=lambda item: item.offset)
    return [
        inputs.MultiModalFeatureSpec(
            None, "image", item.content.hex(), inputs.PlaceholderRange(item.offset, item.length)
        )
        for item in items
    ]
