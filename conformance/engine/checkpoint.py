"""Checkpoints as they are published: ``config.json`` and safetensors files, in the names of Hugging Face's models.

The architectures are those that are this model and nothing else: Llama, Mistral and Ministral. What a config asks for
that the model lacks is refused, never left out: a model that is nearly right gives logits that look right.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp

from kvproof.spec.reading.arguments import refusal, shown

from .checkpoint_config import read_config
from .checkpoint_gguf import load_gguf
from .config import ModelConfig
from .model import Params, param_shapes

__all__ = ["load_checkpoint"]

_MAX_JSON_BYTES = {"config.json": 1 << 20, "model.safetensors.index.json": 1 << 26}
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The dtypes of tensors that are weights, as safetensors calls them."""

_LAYER_NAMES = {
    "mixer_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_NAMES = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}

_DERIVED = ".self_attn.rotary_emb.inv_freq"
"""Tensors that old checkpoints hold beside the weights: the rotary frequencies, which follow from the config."""


class _Found(NamedTuple):
    """A tensor in a file, as its header says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class _Wanted(NamedTuple):
    """A tensor that the model needs, and the weight that it becomes: ``holder[key]``, transposed if so stored."""

    holder: dict[str, Any]
    key: str
    shape: tuple[int, ...]
    transposed: bool


def load_checkpoint(folder: str | Path, dtype: str | None = None) -> tuple[ModelConfig, Params]:
    """A published model: its config and its weights. Everything is checked before the first weight is read.

    It reads with the library ``safetensors``, which executes nothing that a file holds (SEC-3). O(weights).

    Args:
        folder: where ``config.json`` lies, and ``model.safetensors`` or ``model.safetensors.index.json`` with the files
            that it lists; or a file in GGUF, see `load_gguf`.
        dtype: of the weights and activations: float32, bfloat16 or float16; None: as the config says, and float32
            where it says nothing.

    Returns:
        The config, and the weights in the shapes of `param_shapes`.

    Raises:
        ImportError: ``safetensors``, or for a file ``gguf``, is not installed.
        TypeError: ``folder`` is no path [R1].
        ValueError: a file is missing, too large or damaged; the config has a field that the model doesn't support, or
            lacks one; a tensor is missing, unexpected, of a wrong shape or a dtype that is no weight's. The message
            names the fields or tensors [R1].
    """
    if not isinstance(folder, str | Path):
        raise refusal(TypeError, "R1", f"folder={shown(folder)} must be a path")
    path = Path(folder)
    if path.is_file():
        return load_gguf(path, dtype)
    config = read_config(_json(path, "config.json"), dtype)
    try:
        import safetensors
    except ImportError as error:
        raise ImportError("checkpoints are read with safetensors: pip install 'kvproof[engine]'") from error
    params = param_shapes(config)
    wanted = dict(_wanted(params))
    try:
        found = _headers(path, safetensors)
        _check(wanted, found)
        _load(wanted, found, safetensors, config.dtype)
    except safetensors.SafetensorError as error:
        raise refusal(ValueError, "R1", f"folder={shown(folder)}: a file is damaged: {error}") from error
    return config, params


def _json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object in a file of bounded size (SEC-3)."""
    path = folder / name
    if not path.is_file():
        raise refusal(ValueError, "R1", f"folder={str(folder)!r} has no {name}")
    if path.stat().st_size > _MAX_JSON_BYTES[name]:
        raise refusal(ValueError, "R1", f"{name} has {path.stat().st_size} bytes, more than {_MAX_JSON_BYTES[name]}")
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise refusal(ValueError, "R1", f"{name} is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise refusal(ValueError, "R1", f"{name} must hold an object, not a {type(document).__name__}")
    return document


def _wanted(params: Params) -> Iterator[tuple[str, _Wanted]]:
    """The tensors that make a model, by name, from the shapes of its weights."""
    for key, name in _NAMES.items():
        if key in params:
            yield name, _want(params, key)
    for layer, weights in enumerate(params["layers"]):
        for key, name in _LAYER_NAMES.items():
            yield f"model.layers.{layer}.{name}.weight", _want(weights, key)


def _want(holder: dict[str, Any], key: str) -> _Wanted:
    shape = holder[key]
    transposed = len(shape) == 2 and key != "embed"  # a projection is stored as [outputs, inputs]
    return _Wanted(holder, key, shape[::-1] if transposed else shape, transposed)


def _headers(folder: Path, safetensors: Any) -> dict[str, _Found]:
    """All tensors of a checkpoint, by name, with what is said of them; none is read."""
    placed: dict[str, str] = {}
    if not (folder / _SINGLE).is_file():
        if not (folder / _INDEX).is_file():
            raise refusal(ValueError, "R1", f"folder={str(folder)!r} has neither {_SINGLE} nor {_INDEX}")
        placed = _weight_map(_json(folder, _INDEX))
    found: dict[str, _Found] = {}
    for file in sorted(set(placed.values())) or [_SINGLE]:
        if not (folder / file).is_file():
            raise refusal(ValueError, "R1", f"folder={str(folder)!r} has no {file}, which {_INDEX} names")
        with safetensors.safe_open(folder / file, framework="numpy") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - it is no dict
                if placed and placed.get(name) != file:
                    raise refusal(ValueError, "R1", f"{file} holds {name}, which {_INDEX} doesn't place there")
                header = tensors.get_slice(name)
                found[name] = _Found(folder / file, tuple(header.get_shape()), header.get_dtype())
    return found


def _weight_map(index: dict[str, Any]) -> dict[str, str]:
    """The file of each tensor, all of them in the checkpoint's folder."""
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise refusal(ValueError, "R1", f"{_INDEX}: weight_map must be an object that names tensors")
    for name, file in placed.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise refusal(ValueError, "R1", f"{_INDEX}: {name} is in {file!r}, which is no safetensors file beside it")
    return placed


def _check(wanted: dict[str, _Wanted], found: dict[str, _Found]) -> None:
    """Refuses a checkpoint whose tensors are not those of the model (R1)."""
    unexpected = [name for name in found if name not in wanted and not name.endswith(_DERIVED)]
    for fault, names in (("missing", [name for name in wanted if name not in found]), ("unexpected", unexpected)):
        if names:
            raise refusal(ValueError, "R1", f"tensors {fault}: {_listed(sorted(names))}")
    wrong = [
        f"{name} is {list(found[name].shape)}, must be {list(want.shape)}"
        for name, want in wanted.items()
        if found[name].shape != want.shape
    ]
    if wrong:
        raise refusal(ValueError, "R1", f"tensors of a wrong shape: {_listed(wrong)}")
    strange = [f"{name} is {found[name].dtype}" for name in wanted if found[name].dtype not in _DTYPES]
    if strange:
        raise refusal(ValueError, "R1", f"tensors must be of {', '.join(_DTYPES)}: {_listed(strange)}")


def _listed(names: list[str]) -> str:
    """The first few of a list, and how many more there are."""
    more = len(names) - 8
    return ", ".join(names[:8]) + (f", and {more} more" if more > 0 else "")


def _load(wanted: dict[str, _Wanted], found: dict[str, _Found], safetensors: Any, dtype: str) -> None:
    """Reads all weights into their places, one file after the other."""
    for file in sorted({found[name].file for name in wanted}):
        with safetensors.safe_open(file, framework="numpy") as tensors:
            for name, want in wanted.items():
                if found[name].file == file:
                    # The name of bfloat16 is known to numpy since JAX was imported.
                    weight = tensors.get_tensor(name).astype(jnp.dtype(dtype))
                    want.holder[want.key] = jnp.asarray(weight.T if want.transposed else weight)
