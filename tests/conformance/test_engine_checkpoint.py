"""Checkpoints: what transformers says of the same files, and what is refused (R1, SEC-3)."""

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from kvproof.conformance.engine import checkpoint
from kvproof.conformance.engine.checkpoint import load_checkpoint
from kvproof.conformance.engine.checkpoint_config import read_config
from kvproof.conformance.engine.config import LayerKind, Llama3Rope, ModelConfig
from kvproof.conformance.engine.dense import dense_logits
from kvproof.conformance.engine.model import init_params

from .dense_mixer import prompt_logits

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", **SIZES}
MISTRAL = {"model_type": "mistral", "sliding_window": 7, **SIZES}
STRETCHED: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def peers() -> tuple[ModuleType, ModuleType]:
    """The packages torch and transformers."""
    reason = "the comparison with transformers needs: pip install torch transformers"
    return pytest.importorskip("torch", reason=reason), pytest.importorskip("transformers", reason=reason)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, dict[str, NDArray[Any]]]:
    """A checkpoint of Llama, and its tensors."""
    pytest.importorskip("safetensors", reason="checkpoints are read with it: pip install 'kvproof[engine]'")
    tensors = tensors_of(read_config(LLAMA, None))
    save(tmp_path, LLAMA, tensors)
    return tmp_path, tensors


def tensors_of(config: ModelConfig) -> dict[str, NDArray[Any]]:
    """Random weights in the names and shapes of the published checkpoints."""
    params = jax.tree.map(np.asarray, init_params(config, 0))
    tensors = {"model.embed_tokens.weight": params["embed"], "model.norm.weight": params["final_norm"]}
    if not config.tie_embeddings:
        tensors["lm_head.weight"] = params["head"].T
    for layer, weights in enumerate(params["layers"]):
        named = {
            "input_layernorm": weights["mixer_norm"],
            "post_attention_layernorm": weights["mlp_norm"],
            **{f"self_attn.{key}_proj": weights[key].T for key in "qkvo"},
            **{f"mlp.{key}_proj": weights[key].T for key in ("gate", "up", "down")},
        }
        tensors |= {f"model.layers.{layer}.{name}.weight": weight for name, weight in named.items()}
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}


def save(folder: Path, document: Any, *shards: dict[str, NDArray[Any]]) -> None:
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(document))
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors")
        return
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file)
        placed |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))


@pytest.mark.parametrize(
    ("kind", "options", "layers"),
    [
        ("Llama", {}, ["full", "full"]),
        ("Llama", {"head_dim": 12, "tie_word_embeddings": True, "rope_parameters": STRETCHED}, ["full", "full"]),
        ("Mistral", {"sliding_window": 7, "rope_parameters": {"rope_theta": 500.0}}, ["window", "window"]),
        (
            "Ministral",
            {"sliding_window": 7, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
            None,
        ),
    ],
    ids=["llama", "llama3-tied", "mistral", "ministral"],
)
def test_the_logits_are_those_of_transformers(
    peers: tuple[ModuleType, ModuleType], tmp_path: Path, kind: str, options: dict[str, Any], layers: list[str] | None
) -> None:
    """ENG-1 for a published architecture: at float32 the model, dense float64 and transformers agree."""
    pytest.importorskip("safetensors", reason="checkpoints are read with it: pip install 'kvproof[engine]'")
    torch, transformers = peers
    config_class, model_class = (getattr(transformers, f"{kind}{name}") for name in ("Config", "ForCausalLM"))
    rope = {"rope_type": "default", "rope_theta": 10000.0, **options.get("rope_parameters", {})}
    torch.manual_seed(0)
    theirs = model_class(config_class(**{**SIZES, **options, "rope_parameters": rope}, initializer_range=0.15)).eval()
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    config, params = load_checkpoint(tmp_path)
    assert [layer.kind for layer in config.layers] == (layers or ["window", "full"])
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 100, dtype=np.int32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].double().numpy()
    assert expected.std() > 0.5
    np.testing.assert_allclose(dense_logits(params, config, tokens), expected, atol=1e-4, rtol=0)
    logits = prompt_logits(params, config, jnp.asarray(tokens), jnp.arange(100, dtype=jnp.int32))
    np.testing.assert_allclose(np.asarray(logits), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_saved_is_loaded(saved: tuple[Path, Any], dtype: str, parts: int, tied: bool) -> None:
    """In one file or several; bit for bit, in the dtype that the config names."""
    folder, _ = saved
    (folder / "model.safetensors").unlink()
    document = {**LLAMA, "tie_word_embeddings": tied, "torch_dtype": dtype}
    expected = init_params(read_config(document, None), 0)
    tensors = tensors_of(read_config(document, None))
    names = sorted(tensors)
    shards = [{name: tensors[name] for name in names[part::parts]} for part in range(parts)]
    # Old checkpoints hold this buffer, too.
    shards[0]["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    save(folder, document, *shards)
    config, params = load_checkpoint(str(folder))
    assert (config.dtype, config.tie_embeddings) == (dtype, tied)
    assert jax.tree.map(lambda weight: (weight.shape, weight.dtype), params) == jax.tree.map(
        lambda weight: (weight.shape, weight.dtype), expected
    )
    jax.tree.map(np.testing.assert_array_equal, params, expected)


def test_weights_are_taken_to_the_dtype_asked_for(saved: tuple[Path, dict[str, NDArray[Any]]]) -> None:
    folder, tensors = saved
    config, params = load_checkpoint(folder, dtype="bfloat16")
    assert config.dtype == "bfloat16"
    np.testing.assert_array_equal(params["embed"], tensors["model.embed_tokens.weight"].astype(jnp.bfloat16))
    with pytest.raises(ValueError, match=r"dtype='int8' .*\[R1\]"):
        load_checkpoint(folder, dtype="int8")


def test_it_says_what_to_install(saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'kvproof\[engine\]'"):
        load_checkpoint(saved[0])


def test_a_folder_is_a_path() -> None:
    """R1."""
    with pytest.raises(TypeError, match=r"folder=3 must be a path \[R1\]"):
        load_checkpoint(3)  # type: ignore[arg-type]


GATE = "model.layers.1.mlp.gate_proj.weight"
ZEROS = np.zeros((48, 32), np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({GATE: None, "lm_head.weight": None}, f"tensors missing: lm_head.weight, {GATE}"),
        ({"model.layers.0.self_attn.q_proj.bias": ZEROS[0]}, "unexpected: model.layers.0.self_attn.q_proj.bias"),
        ({GATE: ZEROS.T.copy()}, rf"wrong shape: {GATE} is \[32, 48\], must be \[48, 32\]"),
        ({"model.norm.weight": ZEROS[:1]}, r"wrong shape: model.norm.weight is \[1, 32\], must be \[32\]"),
        ({GATE: ZEROS.astype(np.int8)}, f"must be of F32, BF16, F16: {GATE} is I8"),
        ({f"model.layers.{n}.x": ZEROS for n in range(11)}, r"model.layers.6.x, and 3 more"),
    ],
    ids=["missing", "unexpected", "transposed", "rank", "dtype", "many"],
)
def test_tensors_that_are_not_the_model_s_are_refused(
    saved: tuple[Path, dict[str, NDArray[Any]]], change: dict[str, NDArray[Any] | None], message: str
) -> None:
    """R1: by their names."""
    folder, tensors = saved
    save(folder, LLAMA, {name: tensor for name, tensor in (tensors | change).items() if tensor is not None})
    with pytest.raises(ValueError, match=rf"{message} \[R1\]"):
        load_checkpoint(folder)


def test_a_tied_model_has_no_head(saved: tuple[Path, Any]) -> None:
    """R1: one that has must be another model."""
    folder, _ = saved
    (folder / "config.json").write_text(json.dumps({**LLAMA, "tie_word_embeddings": True}))
    with pytest.raises(ValueError, match=r"tensors unexpected: lm_head.weight \[R1\]"):
        load_checkpoint(folder)


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "header"])
def test_a_damaged_file_is_refused(saved: tuple[Path, Any], damage: str) -> None:
    """R1, SEC-3."""
    folder, _ = saved
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = b'{"lm_head.weight":{"dtype":"F32","shape":[96,32],"data_offsets":[0,99999999999]}}'
    file.write_bytes(
        {
            "empty": b"",
            "cut": whole[:-5],
            "noise": b"\xff" * 64,
            "header": struct.pack("<Q", len(header)) + header,
        }[damage]
    )
    with pytest.raises(ValueError, match=r"a file is damaged: .* \[R1\]"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", "[1]", "config.json must hold an object, not a list"),
        ("config.json", "{", "config.json is no JSON"),
        ("config.json", "[" * 100_000, "config.json is no JSON"),
        ("model.safetensors", None, "has neither model.safetensors nor model.safetensors.index.json"),
    ],
    ids=["no config", "list", "no JSON", "deep", "no weights"],
)
def test_files_that_are_not_there_or_not_json_are_refused(
    saved: tuple[Path, Any], file: str, content: str | None, message: str
) -> None:
    """R1."""
    path = saved[0] / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=rf"{message}.* \[R1\]"):
        load_checkpoint(saved[0])


def test_a_config_that_is_too_large_is_refused(saved: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-3."""
    monkeypatch.setitem(checkpoint._MAX_JSON_BYTES, "config.json", 10)
    with pytest.raises(ValueError, match=r"config.json has \d+ bytes, more than 10 \[R1\]"):
        load_checkpoint(saved[0])


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        (None, "weight_map must be an object"),
        ({}, "weight_map must be an object"),
        (["lm_head.weight"], "weight_map must be an object"),
        ({"lm_head.weight": "../model.safetensors"}, "which is no safetensors file beside it"),
        ({"lm_head.weight": "weights.bin"}, "which is no safetensors file beside it"),
        ({"lm_head.weight": ["a"]}, "which is no safetensors file beside it"),
        ({"lm_head.weight": "absent.safetensors"}, "has no absent.safetensors, which .* names"),
        ({"lm_head.weight": "part.safetensors"}, "part.safetensors holds .*, which .* doesn't place there"),
    ],
    ids=["no map", "empty map", "list", "outside", "no safetensors", "no name", "absent", "unplaced"],
)
def test_an_index_that_is_none_is_refused(saved: tuple[Path, Any], weight_map: Any, message: str) -> None:
    """R1, SEC-3: nothing outside the folder is opened."""
    folder, _ = saved
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=rf"{message}.* \[R1\]"):
        load_checkpoint(folder)


def test_a_tensor_that_the_index_places_where_it_is_not_is_missing(saved: tuple[Path, dict[str, Any]]) -> None:
    """R1."""
    folder, tensors = saved
    (folder / "model.safetensors").unlink()
    head = {"lm_head.weight": tensors.pop("lm_head.weight")}
    save(folder, LLAMA, tensors, head)
    file = folder / "model-00002-of-00002.safetensors"
    other = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    save(folder, LLAMA, other)
    (folder / "model.safetensors").replace(file)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] |= dict.fromkeys(other, file.name)
    index.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"tensors missing: lm_head.weight \[R1\]"):
        load_checkpoint(folder)


def test_configs_of_old_and_new_form_are_read() -> None:
    base = read_config(LLAMA, None)
    assert base.layers == (LayerKind("full"),) * 2
    assert (base.head_size, base.num_kv_heads, base.rope_theta, base.dtype) == (8, 2, 10000.0, "float32")
    rope = Llama3Rope(8.0, 1.0, 4.0, 32)
    stretched = replace(base, rope_theta=5e5, rope_scaling=rope)
    assert read_config({**LLAMA, "rope_theta": 5e5, "rope_scaling": STRETCHED}, None) == stretched
    assert read_config({**LLAMA, "rope_parameters": {**STRETCHED, "rope_theta": 5e5}}, None) == stretched
    assert read_config({**LLAMA, "rope_scaling": None, "num_key_value_heads": None}, None).num_kv_heads == 4
    assert read_config({**LLAMA, "dtype": "bfloat16"}, None).dtype == "bfloat16"
    assert read_config({**LLAMA, "dtype": "bfloat16"}, "float32").dtype == "float32"
    assert read_config(MISTRAL, None).layers == (LayerKind("window", 7),) * 2
    assert read_config({**MISTRAL, "sliding_window": 1}, None).layers == (LayerKind("window", 1),) * 2
    assert read_config({**MISTRAL, "sliding_window": None}, None).layers == (LayerKind("full"),) * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "model_type='gemma2' is not supported, only llama, mistral, ministral"),
        ({"model_type": None}, "model_type=None"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures="),
        ({"attention_bias": True}, "attention_bias=True is not supported, only False"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported, only 'silu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config="),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope_type='yarn' is not supported, only default, llama3",
        ),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type='linear'"),
        ({"rope_scaling": {**STRETCHED, "attention_factor": 2.0}}, "has attention_factor: not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "has no factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"layer_types": ["sliding_attention"] * 2}, "layer_types=.* is not supported for model_type llama"),
        ({"hidden_size": 30}, "hidden_size=30 must be a multiple of num_attention_heads=4"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 must be at most 1024"),
        ({"num_attention_heads": 0}, "num_attention_heads=0 must be at least 1"),
        ({"num_key_value_heads": 3}, "num_heads=4 must be a multiple"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype='float8_e4m3fn'"),
        ({"model_type": "mistral", "architectures": None}, "config.json has no sliding_window"),
        (
            {"model_type": "ministral", "architectures": None, "sliding_window": 4, "layer_types": ["full_attention"]},
            "must be a list of num_hidden_layers=2",
        ),
        (
            {"model_type": "ministral", "architectures": None, "sliding_window": 4, "layer_types": ["a", "b"]},
            "layer_types: 'a' is not supported",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_config_that_is_another_model_s_is_refused(change: dict[str, Any], message: str) -> None:
    """R1: by the field."""
    with pytest.raises(ValueError, match=rf"{message}.* \[R1\]"):
        read_config(LLAMA | change, None)


@pytest.mark.parametrize(
    "name",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "rms_norm_eps", "max_position_embeddings"],
)
def test_a_config_that_lacks_a_field_is_refused(name: str) -> None:
    """R1: nothing is guessed."""
    with pytest.raises(ValueError, match=rf"config.json has no {name} \[R1\]"):
        read_config({field: value for field, value in LLAMA.items() if field != name}, None)


@pytest.mark.parametrize(
    "change", [{"vocab_size": "96"}, {"rms_norm_eps": None}, {"rope_scaling": "llama3"}, {"tie_word_embeddings": 1}]
)
def test_a_config_with_a_wrong_type_is_refused(change: dict[str, Any]) -> None:
    """R1."""
    with pytest.raises(TypeError, match=r"\[R1\]"):
        read_config(LLAMA | change, None)
