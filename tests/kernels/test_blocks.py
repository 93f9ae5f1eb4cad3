"""Block sizes: asked for by a call, read from the table of what was measured, said by `explain`."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.kernels import explain, ragged_paged_attention, tune
from kvproof.kernels.tpu import block_table
from kvproof.kernels.tpu.block_sizes import blocks_of_keys, decode_blocks

from . import aot

PAGE = 16
every_package = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
shape: Any = jax.ShapeDtypeStruct


def arrays(tokens: int = 64, page: int = PAGE) -> list[Any]:
    """Shapes of a call over 8 KV heads: 32 query heads of 128."""
    pages = shape((600, page, 8, 2, 128), jnp.bfloat16)
    lengths = [shape(size, jnp.int32) for size in ((8,), (8, 128), (9,), (1,))]
    return [shape((tokens, 32, 128), jnp.bfloat16), pages, *lengths]


def told(**options: Any) -> dict[str, Any]:
    """What `explain` says of each kernel of a call on a TPU."""
    call: Any = explain
    return {said.kernel: said for said in call(ragged_paged_attention, *arrays(), platform="tpu", **options)}


def test_explain_shows_the_blocks_of_each_kernel() -> None:
    plain = told()
    assert plain.keys() == {"ragged_attention", "paged_decode", "paged_decode_drafts"}
    assert plain["paged_decode"].blocks == decode_blocks("", "bfloat16", 8, PAGE)
    said = told(decode_block=256, prefill_block=(32, 128))
    asked = {kernel: of_kernel.blocks for kernel, of_kernel in said.items()}
    assert (asked["paged_decode"].tokens, asked["paged_decode"].short) == (256, (128,))
    assert asked["paged_decode_drafts"].tokens == 512
    assert asked["ragged_attention"] == (32, 128 // PAGE)
    assert (
        str(said["ragged_attention"])
        == "ragged_paged_attention: ragged_attention runs with blocks of queries 32, pages 8"
    )


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"decode_block": 0}, ValueError, "decode_block=0"),
        ({"decode_block": 64}, ValueError, "decode_block=64"),
        ({"decode_block": 384}, ValueError, "decode_block=384"),
        ({"decode_block": 128.0}, TypeError, "decode_block"),
        ({"decode_block": True}, TypeError, "decode_block"),
        ({"prefill_block": 128}, TypeError, "prefill_block=128"),
        ({"prefill_block": (16, 16, 16)}, TypeError, r"prefill_block=\(16, 16, 16\)"),
        ({"prefill_block": (0, 32)}, ValueError, "prefill_block=0"),
        ({"prefill_block": (7, 32)}, ValueError, r"prefill_block=\(7, 32\)"),
        ({"prefill_block": (8, 40)}, ValueError, r"prefill_block=\(8, 40\)"),
    ],
)
@every_package
def test_sizes_that_no_kernel_can_have_are_refused_by_name_and_value(
    package: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """R1: on every platform, before anything is traced."""
    rows, pages = np.zeros((2, 4, 8), np.float32), np.zeros((4, PAGE, 4, 128), np.float32)
    lengths = [np.array(some, np.int32) for some in ([3, 2], [[1], [2]], [0, 1, 2], [2])]
    with pytest.raises(error, match=rf"{text}.*\[R1\]$"):
        package.ragged_paged_attention(rows, pages, *lengths, **options)


@every_package
def test_results_do_not_depend_on_sizes(package: Any) -> None:
    """ATT-1: on a platform whose programs have no such blocks they are taken all the same."""
    rng = np.random.default_rng(0)
    rows, pages = (rng.normal(size=size).astype(np.float32) for size in ((2, 4, 8), (4, PAGE, 4, 128)))
    lengths = [np.array(some, np.int32) for some in ([3, 2], [[1], [2]], [0, 1, 2], [2])]
    attend = partial(package.ragged_paged_attention, rows, pages, *lengths)
    wanted = np.asarray(attend())
    np.testing.assert_array_equal(attend(decode_block=256, prefill_block=(8, 32)), wanted)


@pytest.mark.parametrize(
    "options", [{"decode_block": 2**15}, {"prefill_block": (2048, 512)}, {"prefill_block": (16, 2**15)}]
)
def test_what_no_tpu_has_room_for_is_refused_before_it_is_compiled(options: dict[str, Any]) -> None:
    """R1: else the compiler ends in an error of its own."""
    wide = [shape((4096, 32, 128), jnp.bfloat16), *arrays()[1:3], shape((8, 4096), jnp.int32), *arrays()[4:]]
    ((name, value),) = options.items()
    call: Any = explain
    with pytest.raises(ValueError, match=r"bytes of VMEM, more than") as raised:
        call(ragged_paged_attention, *wide, platform="tpu", **options)
    assert str(raised.value).startswith(f"{name}={value}: ")


def test_a_call_with_sizes_of_its_own_is_lowered_for_tpus() -> None:
    """That kernels compile `test_aot` shows."""
    aot.require()
    attend: Any = partial(ragged_paged_attention, decode_block=256, prefill_block=(32, 128))
    assert str(aot.lower_for("v6e", attend, *arrays()).as_text()).count(f"@{aot.CALL}") == 3


# -- The table -----------------------------------------------------------------------------------

SHAPE = {"device": "v6e", "dtype": "bfloat16", "word_rows": 8, "page_size": PAGE}


def test_the_package_s_own_table_is_read() -> None:
    assert decode_blocks("v6e", "bfloat16", 16, 64) == blocks_of_keys(512, 16)
    assert block_table.measured_keys("v6e", "bfloat16", 8, 64) is None


def test_rows_replace_rows_for_the_same_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "blocks.json"
    for keys in (128, 256):
        block_table.add_row(path, "decode", SHAPE | {"keys": keys})
    block_table.add_row(path, "prefill", SHAPE | {"group": 4, "queries": 64, "keys": 256})
    monkeypatch.setenv(block_table.VARIABLE, str(path))
    assert len(json.loads(path.read_text())["decode"]) == 1
    assert decode_blocks("v6e", "bfloat16", 8, PAGE).tokens == 256
    assert block_table.measured_queries_and_keys("v6e", "bfloat16", 8, PAGE, 4) == (64, 256)
    assert block_table.measured_queries_and_keys("v5e", "bfloat16", 8, PAGE, 4) is None


@pytest.mark.parametrize(
    "text",
    ["nothing", "[]", '{"decode": [{"device": "v6e"}]}', json.dumps({"decode": [SHAPE | {"keys": 100}]})],
)
def test_a_table_that_is_none_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: the message names the file."""
    path = tmp_path / "blocks.json"
    path.write_text(text)
    monkeypatch.setenv(block_table.VARIABLE, str(path))
    with pytest.raises(ValueError, match=r"the table of block sizes .*blocks\.json"):
        decode_blocks("v6e", "bfloat16", 8, PAGE)


# -- The tuner ------------------------------------------------------------------------------------

SMALL = ["--q-heads=2", "--kv-heads=1", "--page=128", "--sequences=2", "--context=256", "--prompt=20", "--prompts=1"]


def test_the_tuner_writes_what_the_kernels_then_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """XLA attends here with any blocks, so that times mean nothing; all else is as on a device."""
    path = tmp_path / "blocks.json"
    monkeypatch.setattr(tune, "_KEYS", (128, 256))
    monkeypatch.setattr(tune, "_QUERIES", (16,))
    monkeypatch.setenv(block_table.VARIABLE, str(path))
    assert tune.main([*SMALL, "--calls=1"], device="v6e") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["decode"] * 3 + ["prefill"] * 3
    best = decode_blocks("v6e", "bfloat16", 1, 128).tokens
    assert lines[2].split() == ["decode", str(best), "written", "to", str(path)]
    queries, keys = block_table.measured_queries_and_keys("v6e", "bfloat16", 1, 128, 2) or (0, 0)
    assert (queries, keys) in ((16, 128), (16, 256))


def test_without_a_tpu_the_tuner_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "there is no TPU here: block sizes are measured on the device that they are for\n"


@pytest.mark.parametrize("wrong", ["--page=0", "--calls=0", "--kv-heads=-1", "--q-heads=31"])
def test_sizes_that_make_no_sense_are_refused_by_the_tuner(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """R1."""
    assert tune.main([wrong]) == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_a_candidate_without_room_is_told_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(*_: Any, **options: Any) -> Any:
        raise ValueError(f"{options} [R1]")

    assert tune.main(SMALL, device="v6e", attend=refuses) == 1
    assert "refused: " in capsys.readouterr().out
