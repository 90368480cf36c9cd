"""A model as a plain dictionary of arrays, and such a dictionary as a file."""

import importlib.util
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from attn import T5, Design, Relative, Shape
from attn.io import from_arrays, load, save, to_arrays
from tests.attn.io.random_transformer import D, F, N, assert_same, build

DESIGNS = [
    Design(),
    Design("pre", "target", biases=True, score="additive"),
    Design("post_final", "separate", positions=T5(), score="bilinear"),
    Design(positions=Relative()),
]


@pytest.mark.parametrize(
    ("design", "suffix"), list(zip(DESIGNS, ["npz", "safetensors"] * 2, strict=True))
)
def test_any_model_through_a_file(tmp_path, design, suffix):
    model, variables = build(design, Shape(N, D, F, 3, 5, 7))
    save(tmp_path / f"model.{suffix}", to_arrays(variables))
    arrays = load(tmp_path / f"model.{suffix}")
    np.testing.assert_array_equal(
        arrays["decoder_1/cross_attention/w_q"],
        variables["params"]["decoder_1"]["cross_attention"]["w_q"],
    )
    assert_same(from_arrays(model, arrays), variables)


def test_arrays_of_another_model_are_named():
    model, variables = build()
    arrays = to_arrays(variables)
    arrays["encoder_2/x"] = arrays.pop("encoder_0/self_attention/w_q")
    arrays["embedding"] = arrays["embedding"].T
    with pytest.raises(
        ValueError,
        match=r"with Shape\(N=2.*Design\(norm='post'.*missing: encoder_0/self_attention/w_q"
        r"; unknown: encoder_2/x; embedding has shape \(14, 29\), not \(29, 14\)$",
    ):
        from_arrays(model, arrays)


KINDS = [
    np.float64,
    np.float32,
    np.float16,
    jnp.bfloat16,
    np.int64,
    np.int32,
    np.int16,
    np.int8,
    np.uint64,
    np.uint32,
    np.uint16,
    np.uint8,
    np.bool_,
]


def test_every_kind_of_number_comes_back(tmp_path):
    arrays = {}
    for kind, shape in itertools.product(KINDS, [(3, 5), (), (0, 2), (3,)]):
        numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        arrays[f"{np.dtype(kind)} {shape}"] = numbers.astype(kind)
    save(tmp_path / "all.safetensors", arrays)
    loaded = load(tmp_path / "all.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, x in arrays.items():
        assert loaded[name].dtype == x.dtype
        np.testing.assert_array_equal(loaded[name], x)
    content = (tmp_path / "all.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8:start]).items():
        assert (start + entry["data_offsets"][0]) % arrays[
            name
        ].itemsize == 0  # aligned


def test_a_file_by_hand(tmp_path):
    """The format's own description: length, JSON, numbers; the order of the entries is free."""
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]},
            "a": {"dtype": "I32", "shape": [2, 1], "data_offsets": [0, 8]},
        }
    ).encode()
    path = tmp_path / "by_hand.safetensors"
    path.write_bytes(
        len(header).to_bytes(8, "little")
        + header
        + bytes([1, 0, 0, 0, 254, 255, 255, 255])
        + bytes([0x80, 0x3F, 0x20, 0xC0])
    )
    loaded = load(str(path))
    np.testing.assert_array_equal(loaded["a"], [[1], [-2]])
    np.testing.assert_array_equal(loaded["b"].astype(float), [1.0, -2.5])


@pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None,
    reason="safetensors is not installed",
)
def test_the_library_reads_what_is_written_and_the_other_way(tmp_path):
    from safetensors import numpy as library

    arrays = {
        name: np.ascontiguousarray(x) for name, x in to_arrays(build()[1]).items()
    }
    save(tmp_path / "ours.safetensors", arrays)
    library.save_file(arrays, tmp_path / "theirs.safetensors")
    assert_same(library.load_file(tmp_path / "ours.safetensors"), arrays)
    assert_same(load(tmp_path / "theirs.safetensors"), arrays)


def test_files_that_cannot_be(tmp_path):
    path = tmp_path / "x.safetensors"
    for content, message in [
        (
            b"PK",
            r"x.safetensors is no safetensors file: a header of 19280 bytes in a file of 2",
        ),
        (
            (5).to_bytes(8, "little") + b"hello",
            "is no safetensors file: Expecting value",
        ),
        (
            _file({"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}, b"0"),
            "w is of F4; known: F64, F32",
        ),
        (
            _file({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, b"1234567"),
            "w should have 2 numbers of float32.*bytes 0 to 8 for it, of which 4 are there",
        ),
        (
            _file({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, b"12345678"),
            "w should have 2 numbers.*0 to 4",
        ),
        (
            _file({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, b"1234"),
            "w should have 2.*of which 4 are",
        ),
    ]:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            load(path)
    for call in (lambda: load("model.pt"), lambda: save("model.pt", {})):
        with pytest.raises(
            ValueError, match=r"model.pt: the name must end in .npz or .safetensors"
        ):
            call()
    with pytest.raises(
        ValueError, match=r"a is of bfloat16; .npz files have float64, float32"
    ):
        save(tmp_path / "x.npz", {"a": jnp.zeros(3, jnp.bfloat16)})
    with pytest.raises(
        ValueError, match=r"a is of complex64; .safetensors files have float64"
    ):
        save(path, {"a": np.zeros(3, np.complex64)})


def _file(entry, numbers):
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header + numbers
