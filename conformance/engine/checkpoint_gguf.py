"""Checkpoints in one GGUF file, as llama.cpp takes them: the Llama family, its weights quantised or not.

Quantised weights are given as the numbers that they stand for. Projections of queries and keys are stored with the
halves of each rotary pair side by side; here they stand half a head apart, so their rows are put back in that order.
"""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from kvproof.spec.reading.arguments import integer, real, refusal, shown

from .config import LayerKind, ModelConfig
from .model import Params, param_shapes

__all__ = ["load_gguf"]

_ARCHITECTURE = "llama"
_MAX_LAYERS = 1024

_NAMES = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
_LAYER_NAMES = {
    "mixer_norm": "attn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}

_KNOWN = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count"),
}
"""The fields of the architecture that are read; one that is not could change the model, and is refused."""


def load_gguf(file: Path, dtype: str | None) -> tuple[ModelConfig, Params]:
    """A model of the Llama family in a GGUF file. Everything is checked before the first weight is read.

    It reads with the package ``gguf``, which executes nothing that a file holds (SEC-3). O(weights).

    Args:
        file: the file.
        dtype: of the weights and activations: float32, bfloat16 or float16; None for float32.

    Returns:
        The config, and the weights in the shapes of `param_shapes`.

    Raises:
        ImportError: ``gguf`` is not installed.
        ValueError: the file is damaged, or of another architecture; a field is missing, or not supported; a tensor is
            missing, unexpected or of a wrong shape [R1].
    """
    try:
        gguf = importlib.import_module("gguf")
        quants = importlib.import_module("gguf.quants")
    except ImportError as error:
        raise ImportError("GGUF files are read with gguf: pip install 'kvproof[engine]'") from error
    try:
        reader = gguf.GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer")}
    except Exception as error:  # the package raises what its numpy calls raise
        raise refusal(ValueError, "R1", f"folder={shown(str(file))}: no GGUF file, or damaged: {error}") from error
    tensors = {str(tensor.name): tensor for tensor in reader.tensors}
    config = _config(fields, dtype, tied=_NAMES["head"] not in tensors)
    params = param_shapes(config)
    wanted = dict(_wanted(params, config))
    _check({name: tuple(reversed(want[2])) for name, want in wanted.items()}, tensors)
    for name, (holder, key, shape, heads) in wanted.items():
        weight = quants.dequantize(tensors[name].data, tensors[name].tensor_type).reshape(shape)
        weight = _put_apart(weight, heads) if heads else weight
        turned = weight.T if len(shape) == 2 and key != "embed" else weight  # stored as [outputs, inputs]
        holder[key] = jnp.asarray(np.asarray(turned, np.float32).astype(jnp.dtype(config.dtype)))
    return config, params


def _config(fields: dict[str, Any], dtype: str | None, tied: bool) -> ModelConfig:
    architecture = fields.get("general.architecture")
    if architecture != _ARCHITECTURE:
        raise refusal(ValueError, "R1", f"general.architecture={shown(architecture)} must be {_ARCHITECTURE!r}")
    own = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    strange = sorted(set(own) - _KNOWN)
    if strange:
        raise refusal(ValueError, "R1", f"fields of llama that are not supported: {', '.join(strange)}")

    def count(name: str) -> int:
        if name not in own:
            raise refusal(ValueError, "R1", f"the file has no llama.{name}")
        return integer(f"llama.{name}", own[name], minimum=1)

    layers, hidden, heads = count("block_count"), count("embedding_length"), count("attention.head_count")
    if layers > _MAX_LAYERS:
        raise refusal(ValueError, "R1", f"llama.block_count={layers} must be at most {_MAX_LAYERS}")
    head_size = count("attention.key_length") if "attention.key_length" in own else hidden // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        if own.get(name, head_size) != head_size:
            raise refusal(ValueError, "R1", f"llama.{name}={own[name]!r} must be the heads' size, {head_size}")
    if "attention.layer_norm_rms_epsilon" not in own:
        raise refusal(ValueError, "R1", "the file has no llama.attention.layer_norm_rms_epsilon")
    return ModelConfig(
        vocab_size=count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=count("feed_forward_length"),
        num_heads=heads,
        num_kv_heads=count("attention.head_count_kv") if "attention.head_count_kv" in own else heads,
        head_size=head_size,
        layers=(LayerKind("full"),) * layers,
        max_model_len=count("context_length"),
        rope_theta=real("llama.rope.freq_base", own.get("rope.freq_base", 10000.0)),
        rms_norm_eps=real("llama.attention.layer_norm_rms_epsilon", own["attention.layer_norm_rms_epsilon"]),
        tie_embeddings=tied,
        dtype=dtype or "float32",
    )


_Want = tuple[dict[str, Any], str, tuple[int, ...], int]
"""Where a weight goes: the dict and the key; the shape in which it is stored; its heads, if its rows change places."""


def _wanted(params: Params, config: ModelConfig) -> Iterator[tuple[str, _Want]]:
    """The tensors that make a model, by name."""
    for key, name in _NAMES.items():
        if key in params:
            yield name, _want(params, key, 0)
    heads = {"q": config.num_heads, "k": config.num_kv_heads}
    for layer, weights in enumerate(params["layers"]):
        for key, name in _LAYER_NAMES.items():
            yield f"blk.{layer}.{name}.weight", _want(weights, key, heads.get(key, 0))


def _want(holder: dict[str, Any], key: str, heads: int) -> _Want:
    shape = holder[key]
    return holder, key, shape[::-1] if len(shape) == 2 and key != "embed" else shape, heads


def _check(wanted: dict[str, tuple[int, ...]], tensors: dict[str, Any]) -> None:
    """Refuses a file whose tensors are not those of the model; shapes as GGUF has them, the last dimension first."""
    for fault, names in (("missing", wanted.keys() - tensors.keys()), ("unexpected", tensors.keys() - wanted.keys())):
        if names:
            raise refusal(ValueError, "R1", f"tensors {fault}: {', '.join(sorted(names)[:8])}")
    for name, shape in wanted.items():
        found = tuple(int(size) for size in tensors[name].shape)
        if found != shape or tensors[name].n_elements != math.prod(shape):
            raise refusal(ValueError, "R1", f"tensor {name} is {list(found)}, must be {list(shape)}")


def _put_apart(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of a projection with the halves of rotary pairs half a head apart; they come side by side."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)
