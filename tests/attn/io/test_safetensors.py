"""Names of arrays in files: any text is a name, in both formats."""

import numpy as np
import pytest

from attn.io import load, save


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_any_text_names_an_array(tmp_path, suffix):
    names = ["file", "allow_pickle", "args", "a/b", "w.npy", "Größe 1"]
    arrays = {name: np.full(2, i, np.float32) for i, name in enumerate(names)}
    path = tmp_path / f"arrays{suffix}"
    save(path, arrays)
    actual = load(path)
    assert sorted(actual) == sorted(names)
    for name, expected in arrays.items():
        np.testing.assert_array_equal(actual[name], expected)


def test_numpy_reads_what_is_written(tmp_path):
    save(tmp_path / "x.npz", {"w": np.arange(6).reshape(2, 3)})
    with np.load(tmp_path / "x.npz") as actual:
        np.testing.assert_array_equal(actual["w"], np.arange(6).reshape(2, 3))


def test_the_name_of_notes_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match="no array can have the name '__metadata__'"):
        save(path, {"__metadata__": np.zeros(2)})
    assert not path.exists()
