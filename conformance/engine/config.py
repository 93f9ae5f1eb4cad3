"""What a model is: the sizes, the kinds of its layers and the constants, refused where they make no sense."""

import math
from dataclasses import dataclass, fields

from kvproof.spec.reading.arguments import flag, integer, real, refusal, shown

__all__ = ["KINDS", "LayerKind", "Llama3Rope", "ModelConfig"]

KINDS = ("full", "window", "chunk", "mla", "state")
"""The kinds of layers, by what each mixes tokens with; only windows and chunks have an extent."""

_DTYPES = ("float32", "bfloat16", "float16")
_WITH_EXTENT = ("window", "chunk")


@dataclass(frozen=True)
class LayerKind:
    """What a layer mixes tokens with.

    Attributes:
        kind: ``full`` attention to every earlier position, over a sliding ``window``, within a ``chunk``, over
            latents (``mla``), or a recurrent ``state``.
        extent: positions of the window, the query's own included, or of a chunk; 0 for the other kinds.

    Raises:
        TypeError: an attribute of a wrong type [R1].
        ValueError: an unknown kind, or an extent that the kind can't have [R1].
    """

    kind: str
    extent: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise refusal(ValueError, "R1", f"kind={shown(self.kind)} must be one of {', '.join(KINDS)}")
        integer("extent", self.extent)
        if (self.kind in _WITH_EXTENT) != (self.extent > 0):
            rule = "at least 1" if self.kind in _WITH_EXTENT else "0"
            raise refusal(ValueError, "R1", f"extent={self.extent} of kind {self.kind} must be {rule}")


@dataclass(frozen=True)
class Llama3Rope:
    """How Llama 3.1 and its successors stretch the rotary frequencies to contexts longer than those of pre-training.

    Waves shorter than ``original_length / high_frequency_factor`` stay, those longer than
    ``original_length / low_frequency_factor`` become ``factor`` times as long, and between them it is interpolated.

    Attributes:
        factor: how much longer the longest waves become; at least 1.
        low_frequency_factor: positive.
        high_frequency_factor: above ``low_frequency_factor``.
        original_length: the context of pre-training, in tokens.

    Raises:
        TypeError: an attribute of a wrong type [R1].
        ValueError: one out of its range [R1].
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_length: int

    def __post_init__(self) -> None:
        integer("original_length", self.original_length, minimum=1)
        if real("factor", self.factor) < 1:
            raise refusal(ValueError, "R1", f"factor={self.factor} must be at least 1")
        low, high = real("low_frequency_factor", self.low_frequency_factor), self.high_frequency_factor
        if not 0 < low < real("high_frequency_factor", high):
            raise refusal(ValueError, "R1", f"high_frequency_factor={high} must be above {low}, and that above 0")


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family, its layers of any mix of kinds. Hashable.

    Attributes:
        vocab_size: V, the tokens that there are.
        hidden_size: E, of the residual stream.
        intermediate_size: F, of the MLP that follows the mixing in each layer.
        num_heads: Hq, query heads.
        num_kv_heads: H, key and value heads; a divisor of ``num_heads``.
        head_size: D, even where there are rotary keys of that size; any otherwise.
        layers: the kind of each layer, at least one.
        max_model_len: the longest that a request gets, in tokens.
        rope_theta: the base of the rotary frequencies.
        rms_norm_eps: what RMSNorm adds to the mean square.
        tie_embeddings: whether the output projection is the embedding's transpose.
        soft_cap: c > 0 makes attention logits s into c * tanh(s / c), in layers over latents too; None: as they are.
        final_soft_cap: the same of the model's own logits.
        sinks: whether every query head has a learned logit more in its softmax, without a value; layers over latents
            have none.
        latent_rank: R, of the latents; needed where a layer is ``mla``.
        rotary_size: Dr, of the rotary key beside the latent; needed there, and even.
        state_size: N: a request's state is f32[hidden, N]; needed where a layer is ``state``.
        dtype: of weights and activations: float32, bfloat16 or float16.
        query_scale: what attention logits are multiplied by; None: the key's size to the power -1/2.
        rope_scaling: how the rotary frequencies are stretched; None: not.

    Raises:
        TypeError: an attribute of a wrong type [R1].
        ValueError: one that is out of its range or contradicts another [R1].
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    layers: tuple[LayerKind, ...]
    max_model_len: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    tie_embeddings: bool = False
    soft_cap: float | None = None
    final_soft_cap: float | None = None
    sinks: bool = False
    latent_rank: int = 0
    rotary_size: int = 0
    state_size: int = 0
    dtype: str = "float32"
    query_scale: float | None = None
    rope_scaling: Llama3Rope | None = None

    def __post_init__(self) -> None:
        self._check_types()
        kinds = {layer.kind for layer in self.layers}
        if not kinds:
            raise refusal(ValueError, "R1", "layers=() must hold at least one layer")
        if self.num_heads % self.num_kv_heads:
            raise refusal(
                ValueError, "R1", f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}"
            )
        for kind, name in (("mla", "latent_rank"), ("mla", "rotary_size"), ("state", "state_size")):
            if kind in kinds and getattr(self, name) < 1:
                raise refusal(ValueError, "R1", f"{name}={getattr(self, name)} must be at least 1 for layers {kind}")
        rotated = ["head_size"] * bool(kinds & {"full", "window", "chunk"}) + ["rotary_size"] * ("mla" in kinds)
        for name in rotated:
            if getattr(self, name) % 2:
                raise refusal(ValueError, "R1", f"{name}={getattr(self, name)} must be even: pairs are rotated")
        if self.dtype not in _DTYPES:
            raise refusal(ValueError, "R1", f"dtype={shown(self.dtype)} must be one of {', '.join(_DTYPES)}")

    def _check_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                integer(field.name, value, minimum=0 if field.default == 0 else 1)
            elif field.type is bool:
                flag(field.name, value)
            elif field.type in (float, float | None) and value is not None and real(field.name, value) <= 0:
                raise refusal(ValueError, "R1", f"{field.name}={value} must be positive")
        if not isinstance(self.layers, tuple) or not all(isinstance(layer, LayerKind) for layer in self.layers):
            raise refusal(TypeError, "R1", f"layers={self.layers!r} must be a tuple of LayerKind")
        if not isinstance(self.rope_scaling, Llama3Rope | None):
            raise refusal(TypeError, "R1", f"rope_scaling={self.rope_scaling!r} must be a Llama3Rope or None")

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.layers)

    def window_of(self, layer: int) -> int | None:
        """The window of a layer in positions; None where it has none."""
        return self.layers[layer].extent if self.layers[layer].kind == "window" else None

    def chunk_of(self, layer: int) -> int | None:
        """The chunk of a layer in positions; None where it has none."""
        return self.layers[layer].extent if self.layers[layer].kind == "chunk" else None

    def scale_of(self, layer: int) -> float:
        """What the attention logits of a layer are multiplied by."""
        if self.query_scale is not None:
            return self.query_scale
        key_size = self.head_size + (self.rotary_size if self.layers[layer].kind == "mla" else 0)
        return 1.0 / math.sqrt(key_size)
