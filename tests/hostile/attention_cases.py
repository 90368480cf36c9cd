"""Random cases for attn.attention: structures, which are compiled once, and their data.

A case is a seed and a number. Its structure is drawn from the seed and number // REPEATS,
its data from the seed and the number. Sizes are as in `attention_oracle`.
"""

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from tests.hostile import attention_oracle as oracle

REPEATS = 10
"""The cases of a structure: compiling takes a thousand times as long as a case."""

DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
}
SIZES = (1, 2, 3, 5, 7, 11, 13)
EDGES = (255, 256, 257, 511, 513)
HUGE = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Structure:
    """What is static in a case."""

    dtype: str = "float32"
    kernel: str | None = "reference"
    block: int = 256
    runs: int = 8
    at_once: int | None = None  # heads computed together
    batch: tuple = (2,)
    n: int = 3
    m: int = 5
    h: int = 2
    group: int = 1  # heads of queries that share a head of keys and values
    widths: tuple = (4, 4, 4)  # of a query, a key and a value
    score: tuple = ("scaled",)  # a kind, and a shape for each parameter
    mask: tuple = ()
    bias: tuple | None = None  # a kind, then its options
    bias_shape: tuple = ()
    lse: bool = True
    weights: bool = False
    integers: str = ""  # those of q, k, v that are integers
    integer_dtype: str = "int32"
    wrong: str = ""  # an argument that does not fit, and how
    expect: str = "served"  # or "refused", or "either"
    gradients: bool = True

    def line(self) -> str:
        """Returns all that differs from the defaults, in one line."""
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("dtype", "kernel") or value != field.default:
                parts.append(f"{field.name}={value!r}")
        return " ".join(parts)

    def kind(self) -> str:
        """Returns the structure without its sizes: failures are grouped by it."""
        names = "&".join(part[0] for part in self.mask) or "none"
        bias = self.bias[0] if self.bias else "none"
        odd = self.wrong.split()[0] if self.wrong else ""
        if self.integers:
            odd = f"integer {self.integers}"
        elif 0 in (*self.batch, self.n, self.m, self.h, *self.widths):
            odd = "a size of 0"
        elif any(number == HUGE for part in self.mask for number in part[1:]):
            odd = "huge bounds"
        heads = ", grouped" if self.group > 1 else ""
        parts = f"{self.kernel}, {self.score[0]}{heads}, mask {names}, bias {bias}"
        return f"{parts}, {odd}" if odd else parts


@dataclasses.dataclass(frozen=True)
class Case:
    """A structure with its arrays, and a word on what is special in them."""

    structure: Structure
    data: dict[str, Any]
    flavour: str


def draw_structure(seed: int, group: int) -> Structure:
    """Returns the structure of a group of cases."""
    rng = np.random.default_rng([seed, group])

    def pick(*values):
        return values[rng.integers(len(values))]

    def chance(share):
        return rng.random() < share

    dtype = pick("float64", "float32", "float32", "bfloat16", "float16")
    kernel = pick(None, "reference", "reference", "blocks", "blocks", "blocks", "cudnn")
    batch = pick((), (1,), (2,), (2,), (3,), (2, 2), (1, 3))
    n = int(pick(*SIZES))
    m = int(pick(*SIZES))
    h = int(pick(1, 2, 3, 4))
    block = int(pick(2, 3, 5, 256))
    d_q = int(pick(1, 2, 3, 5, 8, 64))
    d_v = int(pick(1, 2, 5, d_q, d_q))
    expect = "served"
    if chance(0.03):
        n, m = (int(pick(x, pick(*EDGES), pick(*EDGES))) for x in (n, m))
        batch = ()
        h = 1
        d_q = 2
        block = 256
    elif chance(0.06):
        zero = pick("n", "m", "h", "batch", "d_q", "d_v")
        n = 0 if zero == "n" else n
        m = 0 if zero == "m" else m
        h = 0 if zero == "h" else h
        batch = (0,) if zero == "batch" else batch
        d_q = 0 if zero == "d_q" else d_q
        d_v = 0 if zero == "d_v" else d_v
        expect = "either"
    d_k = d_q
    kind = pick("dot", "scaled", "scaled", "scaled", "bilinear", "low rank", "additive")
    if kind in ("bilinear", "low rank", "additive") and chance(0.5):
        d_k = int(pick(1, 2, 3, 7))
    if kernel == "cudnn":
        expect = "either"
        d_v = d_k if chance(0.8) else d_v
    score = _draw_score(pick, chance, kind, h, d_q, d_k)
    mask = _draw_mask(pick, chance, batch, n, m, h)
    if kernel == "cudnn" and chance(0.7):
        mask = tuple(x for x in mask if x[0] in ("causal", "window", "padding"))
    bias, bias_shape = None, ()
    if chance(0.1 if kernel == "cudnn" else 0.4):
        bias, bias_shape = _draw_bias(pick, chance, batch, n, m, h)
    structure = Structure(
        dtype=dtype,
        kernel=kernel,
        block=block,
        runs=int(pick(2, 2, 2, 8)),
        at_once=pick(None, None, None, 1, 2),
        batch=batch,
        n=n,
        m=m,
        h=h,
        group=_draw_group(seed, group, h),
        widths=(d_q, d_k, d_v),
        score=score,
        mask=mask,
        bias=bias,
        bias_shape=bias_shape,
        lse=kernel != "cudnn" and chance(0.8),
        weights=kernel in ("reference", None) and chance(0.4),
        expect=expect,
    )
    if chance(0.08):
        structure = dataclasses.replace(
            structure,
            integers=pick("qkv", "q", "v", "kv"),
            integer_dtype=pick("int32", "int32", "int8", "uint8", "int64"),
            expect="either",
            gradients=False,
        )
    elif expect == "served" and chance(0.15):
        structure = _make_wrong(structure, pick)
    return structure


def _draw_group(seed, group, h):
    """Returns 1, or another divisor of h, from a stream of its own."""
    rng = np.random.default_rng([seed, group, 2])
    divisors = [d for d in range(2, h + 1) if h % d == 0]
    return int(rng.choice(divisors)) if divisors and rng.random() < 0.5 else 1


def _draw_score(pick, chance, kind, h, d_q, d_k):
    lead = (1,) if chance(0.2) else (h,)
    if kind == "scaled":
        options = {
            "none": (),
            "static": (0.3,),
            "number": (("scale", ()),),
            "heads": (("scale", (h,)),),
        }
        return (kind, *options[pick("none", "static", "number", "heads")])
    if kind == "bilinear":
        return (kind, ("w", (*lead, d_q, d_k)))
    if kind == "low rank":
        r = int(pick(1, 2, 5))
        return (kind, ("w", (*lead, d_q, r)), ("w_2", (*lead, r, d_k)))
    if kind == "additive":
        a = int(pick(1, 3, 4, 9))
        shapes = [
            ("w_q", (*lead, d_q, a)),
            ("w_k", (*lead, d_k, a)),
            ("v", (*lead, a)),
        ]
        if chance(0.5):
            shapes.append(("b", (*lead, a)))
        return (kind, *shapes)
    return (kind,)


def _draw_mask(pick, chance, batch, n, m, h):
    makers = {
        "causal": lambda: ("causal", int(pick(0, 0, 0, m - n, 1, -1, -3, m))),
        "window": lambda: ("window", int(pick(0, 1, 3, -1)), int(pick(0, 0, 1, 2, -2))),
        "causal_at": lambda: ("causal_at", pick((), batch)),
        "padding": lambda: ("padding", pick((), batch, batch)),
        "segments": lambda: (
            "segments",
            (*pick((), batch), n),
            (*pick((), batch), m),
        ),
        "dense": lambda: (
            "dense",
            _broadcast_shape(pick, chance, (*batch, h, n, m)),
        ),
    }
    parts = [makers[pick(*makers)]() for _ in range(int(pick(0, 1, 1, 1, 2, 3)))]
    if chance(0.02):
        parts.append(
            pick(("causal", HUGE), ("window", HUGE, HUGE), ("window", 1, HUGE))
        )
    return tuple(parts)


def _broadcast_shape(pick, chance, full):
    """Returns a shape that broadcasts to the full one: axes of 1, the first left out."""
    shape = [1 if chance(0.3) else size for size in full]
    return tuple(shape[int(pick(0, 0, 0, *range(len(full) - 1))) :])


def _draw_bias(pick, chance, batch, n, m, h):
    offset = int(pick(0, 0, 1, -2, 5))
    kind = pick("dense", "dense", "alibi", "relative", "bucket")
    lead = (1,) if chance(0.2) else (h,)
    if kind == "dense":
        return (kind, offset), _broadcast_shape(pick, chance, (*batch, h, n, m))
    if kind == "alibi":
        return (kind, offset), lead
    if kind == "relative":
        return (kind, offset), (*lead, int(pick(1, 3, 7)))
    both = bool(pick(True, False))
    return (kind, both, int(pick(5, 8, 20)), offset), (*lead, int(pick(4, 8)))


def _make_wrong(structure, pick):
    """Returns a structure with an argument that does not fit."""
    full = [*structure.batch, structure.h, structure.n, structure.m]
    changes = []
    for axis in (-2, -1):
        for change in (1, 2, -1):
            # A length of 1 stands for all, and one of 0 is another matter.
            if full[axis] + change > 1:
                changes.append((axis, change))
    axis, change = pick(*changes)
    full[axis] += change
    n = full[-2]
    m = full[-1]
    wrong = pick("segments", "segments", "dense", "dense", "bias", "padding")
    shape = tuple(full[int(pick(0, -2, -3)) :])
    mask = structure.mask
    values = {}
    if wrong == "segments":
        mask += (("segments", (*structure.batch, n), (*structure.batch, m)),)
    elif wrong == "dense":
        mask += (("dense", shape),)
    elif wrong == "padding":
        # More examples than there are, and more than heads.
        shape = (max((*structure.batch, structure.h)) + 1,)
        mask += (("padding", shape),)
    else:
        values = {"bias": ("dense", 0), "bias_shape": shape}
    described = f"{wrong} {shape if wrong != 'segments' else (n, m)}"
    return dataclasses.replace(
        structure,
        mask=mask,
        wrong=described,
        expect="refused",
        gradients=False,
        **values,
    )


def draw_case(seed: int, number: int, structure: Structure | None = None) -> Case:
    """Returns the case of this seed and number, or other data for a structure."""
    if structure is None:
        structure = draw_structure(seed, number // REPEATS)
    rng = np.random.default_rng([seed, number, 1])
    plain = number % REPEATS == 0
    return _draw_data(rng, structure, plain)


def _draw_data(rng, structure, plain):
    words = []

    def pick(*values):
        return values[rng.integers(len(values))]

    def rounded(x):
        return np.asarray(x).astype(DTYPES[structure.dtype])

    def parameter(shape, size=0.5):
        x = rng.normal(size=shape) * size
        return x.astype(np.float64 if structure.dtype == "float64" else np.float32)

    lead = structure.batch
    h = structure.h
    n = structure.n
    m = structure.m
    d_q, d_k, d_v = structure.widths
    h_kv = h // structure.group
    size = 1.0 if plain else pick(1.0, 1.0, 1.0, 0.1, 10.0, 100.0)
    if structure.dtype == "float16" or structure.score[0] == "additive":
        # Products of larger queries may overflow, and a tanh that is 1 has no gradient but
        # of rounding.
        size = min(size, 1.0)
    data = {
        "q": rounded(rng.normal(size=(*lead, n, h, d_q)) * size),
        "k": rounded(rng.normal(size=(*lead, m, h_kv, d_k))),
        "v": rounded(rng.normal(size=(*lead, m, h_kv, d_v))),
        "g_out": rounded(rng.normal(size=(*lead, n, h, d_v))),
        "score": {name: parameter(shape) for name, shape in _shapes(structure)},
        "mask": [_draw_part(rng, pick, part, structure) for part in structure.mask],
        "bias": _draw_bias_data(rng, pick, structure, words, plain),
    }
    if size != 1:
        words.append(f"queries x {size:g}")
    if structure.lse:
        data["g_lse"] = parameter((*lead, n, h), 1.0)
    if structure.weights:
        data["g_weights"] = parameter((*lead, h, n, m), 1.0)
    if structure.integers:
        for name in structure.integers:
            low = 0 if structure.integer_dtype == "uint8" else -4
            x = rng.integers(low, 5, data[name].shape)
            data[name] = x.astype(structure.integer_dtype)
    elif not plain and not structure.wrong:
        if rng.random() < 0.2:
            _make_large(rng, pick, structure, data, words)
        _poison(rng, pick, structure, data, words)
    return Case(structure, data, ", ".join(words))


def _shapes(structure):
    return [option for option in structure.score[1:] if isinstance(option, tuple)]


def _draw_part(rng, pick, part, structure):
    kind, *shapes = part
    n = structure.n
    m = structure.m
    if kind == "causal_at":
        return {"offset": rng.integers(-3, m + 2, shapes[0]).astype(np.int32)}
    if kind == "padding":
        return {"lengths": rng.integers(-1, m + 3, shapes[0]).astype(np.int32)}
    if kind == "segments":
        ids = int(pick(1, 2, 3))
        q_ids = rng.integers(0, ids, shapes[0]).astype(np.int32)
        k_ids = rng.integers(0, ids, shapes[1]).astype(np.int32)
        # Some match nothing.
        q_ids = np.where(rng.random(shapes[0]) < 0.1, -1, q_ids).astype(np.int32)
        return {"q_ids": q_ids, "k_ids": k_ids}
    if kind == "dense":
        return {"array": rng.random(shapes[0]) < pick(0.0, 0.3, 0.6, 0.9, 1.0)}
    assert kind in ("causal", "window") and n >= 0
    return {}


def _draw_bias_data(rng, pick, structure, words, plain):
    if structure.bias is None:
        return None
    wide = np.float64 if structure.dtype == "float64" else np.float32
    x = rng.normal(size=structure.bias_shape)
    if structure.bias[0] == "dense":
        special = (
            "none" if plain else pick("none", "-inf", "-inf row", "-1e30", "x 100")
        )
        where = rng.random(x.shape) < 0.3
        if special == "x 100":
            x = x * 100
        elif special == "-inf row" and x.ndim > 1:
            # Of no queries there is no first one.
            x[..., :1, :] = -np.inf
        elif special != "none":
            x = np.where(where, float(special.split()[0]), x)
        if special != "none":
            words.append(f"bias {special}")
    return x.astype(wide)


def _make_large(rng, pick, structure, data, words):
    """Makes keys or values so large that their sum overflows, but no result does."""
    values = {"float16": 3e3, "float64": 1e307}.get(structure.dtype, 1e37)
    # A kernel may sum the values of many keys before it divides by the weights' sum.
    values *= min(1, 16 / max(1, structure.m))
    # Scores of such keys are finite in half precision only.
    name = pick("k", "v") if structure.dtype == "float16" else "v"
    data["q"] = np.zeros_like(data["q"])
    size = rng.uniform(0.8, 1.0, data[name].shape) * values
    data[name] = size.astype(data[name].dtype)
    # So that no gradient overflows.
    share = 0.01 if structure.dtype == "float16" else 1e-12
    data["g_out"] = (data["g_out"].astype(np.float64) * share).astype(data["v"].dtype)
    words.append(f"{name} of {values:g}")


def _poison(rng, pick, structure, data, words):
    """Puts NaN and Inf where nobody sees them, and rarely where some do."""
    if 0 in structure.batch or not structure.mask:
        return
    batch = structure.batch
    n = structure.n
    m = structure.m
    h = structure.h
    parts = structure.mask
    seen = oracle.visible(parts, data["mask"], batch, n, m, h)
    of_keys = seen.reshape(len(seen), h // structure.group, structure.group * n, m)
    hidden_keys = ~of_keys.any(-2)  # (B, H / group, M)
    blind = ~seen.any(-1)  # (B, H, N)

    def laid_out(x):
        return np.moveaxis(x, 1, 2).reshape(*batch, x.shape[2], x.shape[1])

    bad = pick(np.nan, np.inf, -np.inf)
    keys = laid_out(hidden_keys & (rng.random(hidden_keys.shape) < 0.7))
    if rng.random() < 0.6 and keys.any():
        names = pick("k", "v", "kv")
        for name in names:
            at = keys[..., None] & (rng.random(data[name].shape) < 0.6)
            data[name] = np.where(at, bad, data[name]).astype(data[name].dtype)
        words.append(f"{bad} in hidden {names}")
    queries = laid_out(blind)
    if rng.random() < 0.3 and queries.any():
        data["q"] = np.where(queries[..., None], bad, data["q"]).astype(data["q"].dtype)
        words.append(f"{bad} in q that sees nothing")
    no_inf = not any("-inf" in word or "-1e30" in word for word in words)
    if rng.random() < 0.1 and no_inf and 0 not in (m, *structure.widths):
        name = pick("k", "v")
        at = rng.random(data[name].shape[:-1]) < 0.2
        data[name] = np.where(at[..., None], np.nan, data[name]).astype(
            data[name].dtype
        )
        words.append(f"NaN in {name}, seen by some")


def corners() -> dict[str, Structure]:
    """Returns structures that are always tried: each once gave a wrong result."""
    wide = {"mask": (("causal", 0),), "batch": (), "h": 1}
    corners = {
        "integers": Structure(integers="qkv", expect="either", gradients=False),
        "integer queries": Structure(integers="q", expect="either", gradients=False),
        "integer values": Structure(integers="v", expect="either", gradients=False),
        "NaN behind a padded block": Structure(
            kernel="blocks", block=2, runs=2, n=3, m=4, widths=(1, 1, 1), **wide
        ),
        "NaN behind a padded block, additive": Structure(
            kernel="blocks",
            block=2,
            runs=2,
            n=3,
            m=4,
            widths=(2, 2, 1),
            score=(
                "additive",
                ("w_q", (1, 2, 1)),
                ("w_k", (1, 2, 1)),
                ("v", (1, 1)),
            ),
            **wide,
        ),
        "large numbers in float16": Structure(
            dtype="float16", widths=(64, 64, 64), **wide
        ),
        "large numbers in float32": Structure(
            kernel="blocks", widths=(64, 64, 64), **wide
        ),
    }
    shapes = {
        "too few ids of queries": ("segments", (2, 2), (2, 5)),
        "too many ids of queries": ("segments", (2, 4), (2, 5)),
        "too few ids of keys": ("segments", (2, 3), (2, 4)),
        "too many ids of keys": ("segments", (2, 3), (2, 7)),
        "too few rows": ("dense", (2, 5)),
        "too many rows": ("dense", (8, 5)),
        "too few columns": ("dense", (3, 4)),
        "too many columns": ("dense", (2, 2, 3, 8)),
    }
    for name, part in shapes.items():
        for kernel in ("reference", "blocks"):
            corners[f"{name}, {kernel}"] = Structure(
                kernel=kernel,
                mask=(part,),
                wrong=f"{part[0]} {part[1:]}",
                expect="refused",
                gradients=False,
            )
    return corners
