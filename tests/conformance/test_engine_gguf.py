"""Checkpoints in GGUF: the model that was written comes back, and what is refused (R1, SEC-3)."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from kvproof.conformance.engine.checkpoint import load_checkpoint
from kvproof.conformance.engine.config import LayerKind, ModelConfig
from kvproof.conformance.engine.model import init_params

CONFIG = ModelConfig(96, 32, 64, 4, 2, 8, (LayerKind("full"),) * 2, 128, rope_theta=5000.0, rms_norm_eps=1e-5)
FIELDS: dict[str, Any] = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "vocab_size": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 5000.0,
    "rope.dimension_count": 8,
}
NAMES = {"mixer_norm": "attn_norm", "o": "attn_output", "mlp_norm": "ffn_norm"}
NAMES |= {key: f"attn_{key}" for key in "qkv"} | {key: f"ffn_{key}" for key in ("gate", "up", "down")}


def side_by_side(weight: Any, heads: int) -> Any:
    """Rows as llama.cpp's converter lays them: the two of a rotary pair next to each other."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(params: Any) -> dict[str, Any]:
    named = {"token_embd.weight": params["embed"], "output_norm.weight": params["final_norm"]}
    named["output.weight"] = params["head"].T
    for layer, weights in enumerate(params["layers"]):
        for key, weight in weights.items():
            turned = weight.T if weight.ndim == 2 else weight
            turned = side_by_side(turned, {"q": 4, "k": 2}[key]) if key in "qk" else turned
            named[f"blk.{layer}.{NAMES[key]}.weight"] = turned
    return {name: np.ascontiguousarray(weight, np.float32) for name, weight in named.items()}


def save(file: Path, fields: dict[str, Any], tensors: dict[str, Any], quantised: str = "") -> Path:
    gguf = pytest.importorskip("gguf", reason="GGUF files are read with it: pip install 'kvproof[engine]'")
    writer = gguf.GGUFWriter(file, fields.get("architecture", "llama"))
    for name, value in fields.items():
        if name != "architecture":
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"llama.{name}", value)
    for name, tensor in tensors.items():
        if quantised and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    params = jax.tree.map(np.asarray, init_params(CONFIG, 0))
    config, loaded = load_checkpoint(save(tmp_path / "model.gguf", FIELDS, tensors_of(params)), "float32")
    assert config.layers == CONFIG.layers
    assert (config.rope_theta, config.tie_embeddings) == (5000.0, False)
    assert abs(config.rms_norm_eps - 1e-5) < 1e-9
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_quantised_weights_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    params = jax.tree.map(np.asarray, init_params(CONFIG, 0))
    tensors = tensors_of(params)
    del tensors["output.weight"]  # tied
    config, loaded = load_checkpoint(save(tmp_path / "model.gguf", FIELDS, tensors, "Q8_0"), "float32")
    assert config.tie_embeddings
    for key in ("q", "k", "down"):
        weight, right = np.asarray(loaded["layers"][1][key]), params["layers"][1][key]
        assert 0 < np.abs(weight - right).max() <= np.abs(right).max() / 127


@pytest.mark.parametrize(
    ("fields", "tensors", "says"),
    [
        ({"architecture": "mamba"}, {}, "general.architecture='mamba' must be 'llama'"),
        ({"expert_count": 8}, {}, "expert_count"),
        ({"rope.dimension_count": 4}, {}, "rope.dimension_count=4 must be the heads' size, 8"),
        ({"block_count": 0}, {}, "block_count=0"),
        ({"block_count": 5000}, {}, "at most 1024"),
        ({"context_length": None}, {}, "no llama.context_length"),
        ({"attention.layer_norm_rms_epsilon": None}, {}, "no llama.attention.layer_norm_rms_epsilon"),
        ({}, {"blk.0.attn_q.weight": None}, "tensors missing: blk.0.attn_q.weight"),
        ({}, {"rope_freqs.weight": np.ones(4, np.float32)}, "tensors unexpected: rope_freqs.weight"),
        ({}, {"output_norm.weight": np.ones(31, np.float32)}, r"output_norm.weight is \[31\], must be \[32\]"),
    ],
)
def test_what_is_not_this_model_is_refused(
    tmp_path: Path, fields: dict[str, Any], tensors: dict[str, Any], says: str
) -> None:
    all_tensors = tensors_of(jax.tree.map(np.asarray, init_params(CONFIG, 0))) | tensors
    file = save(
        tmp_path / "model.gguf",
        {name: value for name, value in (FIELDS | fields).items() if value is not None},
        {name: value for name, value in all_tensors.items() if value is not None},
    )
    with pytest.raises(ValueError, match=says):
        load_checkpoint(file)


@pytest.mark.parametrize("length", [0, 3, 40, 2000])
def test_a_damaged_file_is_refused(tmp_path: Path, length: int) -> None:
    file = save(tmp_path / "model.gguf", FIELDS, tensors_of(jax.tree.map(np.asarray, init_params(CONFIG, 0))))
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ValueError, match="no GGUF file, or damaged"):
        load_checkpoint(file)
