"""A published model's ``config.json``, read as a `ModelConfig`; what the model can't do is refused by its name."""

from typing import Any

from kvproof.spec.reading.arguments import integer, real, refusal, shown

from .config import LayerKind, Llama3Rope, ModelConfig

__all__ = ["read_config"]

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "ministral": "MinistralForCausalLM"}
"""The model types that are this model, and the classes whose checkpoints have its tensors."""

_MAX_LAYERS = 1024

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "partial_rotary_factor": (1.0, None),
    "quantization_config": (None,),
}
"""Fields that would change the model, and the values at which they don't."""

_ROPE_FIELDS = {
    "default": {"rope_type", "type", "rope_theta", "partial_rotary_factor"},
    "llama3": {
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor"),
        *("high_freq_factor", "original_max_position_embeddings"),
    },
}
"""Which fields each kind of rotary embedding reads."""


def read_config(document: dict[str, Any], dtype: str | None) -> ModelConfig:
    """The model that a ``config.json`` describes. O(layers).

    Fields that say nothing about the computation are passed over; one that is missing is refused, unless the published
    configs of that type leave it out for a known value.

    Args:
        document: what the file holds.
        dtype: of weights and activations; None: as the file says, and float32 where it says nothing.

    Raises:
        TypeError: a field of a wrong type [R1].
        ValueError: a field is missing, or asks for what the model doesn't do [R1].
    """
    model_type = document.get("model_type")
    if not isinstance(model_type, str) or model_type not in _ARCHITECTURES:
        raise refusal(
            ValueError, "R1", f"model_type={shown(model_type)} is not supported, only {', '.join(_ARCHITECTURES)}"
        )
    if document.get("architectures") not in (None, [_ARCHITECTURES[model_type]]):
        raise refusal(
            ValueError, "R1", f"architectures={document['architectures']!r} must be [{_ARCHITECTURES[model_type]!r}]"
        )
    for name, neutral in _NEUTRAL.items():
        if name in document and document[name] not in neutral:
            raise refusal(ValueError, "R1", f"{name}={document[name]!r} is not supported, only {neutral[0]!r}")
    heads, hidden = _required(document, "num_attention_heads"), _required(document, "hidden_size")
    theta, scaling = _read_rope(document)
    return ModelConfig(
        vocab_size=_required(document, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_required(document, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=_kv_heads(document, model_type, heads),
        head_size=_head_size(document, hidden, heads),
        layers=_read_layers(document, model_type),
        max_model_len=_required(document, "max_position_embeddings"),
        rope_theta=theta,
        rms_norm_eps=real("rms_norm_eps", _given(document, "rms_norm_eps")),
        tie_embeddings=document.get("tie_word_embeddings", False),
        dtype=dtype or document.get("dtype") or document.get("torch_dtype") or "float32",
        rope_scaling=scaling,
    )


def _given(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise refusal(ValueError, "R1", f"config.json has no {name}")
    return document[name]


def _required(document: dict[str, Any], name: str) -> int:
    return integer(name, _given(document, name), minimum=1)


def _kv_heads(document: dict[str, Any], model_type: str, heads: int) -> int:
    """The KV heads; Llama's configs leave them out where each query head has its own."""
    if model_type == "llama" and document.get("num_key_value_heads") is None:
        return heads
    return _required(document, "num_key_value_heads")


def _head_size(document: dict[str, Any], hidden: int, heads: int) -> int:
    if document.get("head_dim") is not None:
        return _required(document, "head_dim")
    if hidden % heads:
        raise refusal(ValueError, "R1", f"hidden_size={hidden} must be a multiple of num_attention_heads={heads}")
    return hidden // heads


def _read_layers(document: dict[str, Any], model_type: str) -> tuple[LayerKind, ...]:
    """The kind of each layer: full, or of a window where the type has them."""
    number = _required(document, "num_hidden_layers")
    if number > _MAX_LAYERS:
        raise refusal(ValueError, "R1", f"num_hidden_layers={number} must be at most {_MAX_LAYERS}")
    kinds, window = document.get("layer_types"), document.get("sliding_window")
    if model_type != "llama":
        window = _given(document, "sliding_window")
    if kinds is None:
        kinds = ["full_attention" if window is None or model_type == "llama" else "sliding_attention"] * number
    elif model_type != "ministral":  # the classes of the others pass over it
        raise refusal(ValueError, "R1", f"layer_types={kinds!r} is not supported for model_type {model_type}")
    if not isinstance(kinds, list) or len(kinds) != number:
        raise refusal(ValueError, "R1", f"layer_types={kinds!r} must be a list of num_hidden_layers={number}")
    return tuple(_read_layer(kind, window) for kind in kinds)


def _read_layer(kind: Any, window: Any) -> LayerKind:
    if kind == "full_attention":
        return LayerKind("full")
    if kind == "sliding_attention":
        return LayerKind("window", integer("sliding_window", window, minimum=1))
    raise refusal(ValueError, "R1", f"layer_types: {kind!r} is not supported, only full and sliding attention")


def _read_rope(document: dict[str, Any]) -> tuple[float, Llama3Rope | None]:
    """The base of the rotary frequencies and how they are stretched, in the old fields or the new one."""
    fields = document.get("rope_parameters") or document.get("rope_scaling") or {}
    if not isinstance(fields, dict):
        raise refusal(TypeError, "R1", f"rope_scaling={fields!r} must be an object")
    kind = fields.get("rope_type", fields.get("type", "default"))
    if not isinstance(kind, str) or kind not in _ROPE_FIELDS:
        raise refusal(ValueError, "R1", f"rope_type={shown(kind)} is not supported, only {', '.join(_ROPE_FIELDS)}")
    unknown = sorted(set(fields) - _ROPE_FIELDS[kind])
    if unknown:
        raise refusal(ValueError, "R1", f"rope_scaling of rope_type {kind} has {', '.join(unknown)}: not supported")
    if fields.get("partial_rotary_factor", 1.0) != 1.0:
        factor = fields["partial_rotary_factor"]
        raise refusal(ValueError, "R1", f"partial_rotary_factor={factor!r} is not supported, only 1.0")
    theta = real("rope_theta", fields.get("rope_theta", document.get("rope_theta", 10000.0)))
    if kind == "default":
        return theta, None
    for name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
        if name not in fields:
            raise refusal(ValueError, "R1", f"rope_scaling of rope_type {kind} has no {name}")
    return theta, Llama3Rope(
        factor=real("factor", fields["factor"]),
        low_frequency_factor=real("low_freq_factor", fields["low_freq_factor"]),
        high_frequency_factor=real("high_freq_factor", fields["high_freq_factor"]),
        original_length=_required(fields, "original_max_position_embeddings"),
    )
