"""Weights in and out: PyTorch's nn.Transformer, plain dictionaries of arrays, and files of them.

    model, variables = from_torch(load("model.safetensors"), h=8)
    save("model.npz", to_torch(model, variables))

D = d_model, Y vocabulary, L length.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.typing import ArrayLike

from attn.array_files import load, save
from attn.layers import Design, Shape
from attn.masks import Mask
from attn.positions import Learned, NoPositions, Sinusoidal
from attn.transformer import Transformer

__all__ = [
    "Names",
    "from_arrays",
    "from_torch",
    "load",
    "save",
    "to_arrays",
    "to_torch",
]

ATTENTIONS = {
    "encoder": {"self_attn": "self_attention"},
    "decoder": {"self_attn": "self_attention", "multihead_attn": "cross_attention"},
}
"""The attentions of a layer, by PyTorch's names and by ours."""
NORMS = {
    "encoder": {"norm1": "self_norm", "norm2": "feed_forward_norm"},
    "decoder": {
        "norm1": "self_norm",
        "norm2": "cross_norm",
        "norm3": "feed_forward_norm",
    },
}
ATTENTION_BIASES = ("in_proj_bias", "out_proj.bias")


class Names(NamedTuple):
    """What a model calls that which nn.Transformer leaves to its user."""

    transformer: str = ""
    """What stands before nn.Transformer's own names, as "transformer."."""
    source_embedding: str = "src_embed.weight"
    target_embedding: str = "tgt_embed.weight"
    """(Y, D) like the source's; where an array of this name is missing, it is the source's."""
    output: str = "generator.weight"
    """(Y, D), of a Linear without bias; where it is missing, it is the target's embedding."""
    source_positions: str = "src_pos.weight"
    """(L, D), trained; may be the same name as the target's."""
    target_positions: str = "tgt_pos.weight"


def from_torch(
    arrays: Mapping[str, ArrayLike],
    h: int,
    design: Design = Design(norm_epsilon=1e-5),
    *,
    positions: Sinusoidal | Learned | NoPositions = Sinusoidal(),
    length: int = 1024,
    names: Names = Names(),
) -> tuple[Transformer, dict]:
    """The model that a state_dict of torch.nn.Transformer is of, and its variables, in float32 at least.

    N, d_model, d_ff and the vocabulary are read from the arrays, and so is most of the design: the final LayerNorms,
    which nn.Transformer has unless told otherwise, mean norm="post_final"; embeddings are tied where arrays are equal;
    `biases` is whether any attention has them. With bias=False nn.Transformer has none at all, and those which this
    model always has become 0. A position table among the arrays is Learned. `model.clone(P_drop=…)` has another
    dropout.

    Args:
      arrays: by name; a state_dict itself will do, and so will what `load` gives.
      h: nhead, for the arrays do not tell.
      design: has what they do not tell either: norm="pre" for norm_first=True, activation, norm_epsilon (PyTorch's by
        default), and scale_embeddings, whether the model multiplies its embeddings by √d_model.
      positions, length: the table, where the arrays have none.
      names: of embeddings and tables, and what stands before the other names.

    Raises:
      ValueError: arrays that are missing, unknown, of another shape or not of floating numbers, all of them named; an h
        that does not divide d_model; an output bias that is not 0.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    shape = _shape(arrays, h, names.transformer)
    arrays = _without_output_bias(arrays, names)
    tables = [
        arrays[name]
        for name in (names.source_positions, names.target_positions)
        if name in arrays and arrays[name].ndim == 2
    ]
    model = Transformer(
        shape,
        _vocabulary(arrays, names),
        len(tables[0]) if tables else length,
        Learned() if tables else positions,
        design=_design(arrays, design, names),
    )
    # A byte a number: only the shapes of what would be written matter.
    expected = dict(
        _written(
            model,
            jax.tree.map(lambda x: np.zeros(x.shape, bool), _abstract(model)),
            names,
        )
    )
    zeros = _zeros(arrays, expected)
    shared = {names.target_embedding, names.output} - arrays.keys()
    _check(
        arrays,
        {name: x for name, x in expected.items() if name not in {*zeros, *shared}},
        f"an nn.Transformer of N={shape.N}, d_model={shape.d_model}, d_ff={shape.d_ff}",
    )
    return model, jax.tree.map(
        _wide, _read(model, zeros | _with_shared(arrays, names), names)
    )


def to_torch(
    model: Transformer, variables, names: Names = Names()
) -> dict[str, np.ndarray]:
    """The arrays of a model by nn.Transformer's names, as its load_state_dict takes them (by torch.from_numpy).

    Embeddings and the output are written each by its name, also where they are one matrix, and attention without
    biases has biases of 0. norm="pre" is norm_first=True; norm="post" is written without the final LayerNorms, which
    such an nn.Transformer has to be without too: its encoder.norm and decoder.norm are None. Sinusoids are not written.

    Raises:
      ValueError: a model that nn.Transformer does not have: h·d_k or h·d_v other than d_model, another score than
        "scaled_dot", relative positions; position tables that differ and have one name.
    """
    shape, design = model.shape, model.design
    if not shape.h * shape.d_k == shape.h * shape.d_v == shape.d_model:
        raise ValueError(
            f"nn.Transformer needs h·d_k = h·d_v = d_model, got h={shape.h}, d_k={shape.d_k}, "
            f"d_v={shape.d_v}, d_model={shape.d_model}; to_arrays writes any model"
        )
    for name in (
        "score",
        "relative",
        "heads",
        "head_activation",
        "choice",
        "encoder_mixing",
        "decoder_mixing",
    ):
        if getattr(design, name) != getattr(Design(), name):
            raise ValueError(
                f"nn.Transformer has no {name}={getattr(design, name)!r}; to_arrays writes any model"
            )
    variables = jax.tree.map(np.asarray, variables)
    tables = [table["table"] for table in variables["positions"].values()]
    if (
        model.positions.trained
        and names.source_positions == names.target_positions
        and not np.array_equal(*tables)
    ):
        raise ValueError(
            f"the position tables of source and target differ and cannot both be "
            f"{names.source_positions!r}; give them two names"
        )
    return {
        name: np.array(x, order="C") for name, x in _written(model, variables, names)
    }


def to_arrays(variables) -> dict[str, np.ndarray]:
    """All variables of any model as one flat dictionary, as "encoder_0/self_attention/w_q" and
    "source_positions/table"."""
    return {name: np.array(x) for name, x in _flat(variables).items()}


def from_arrays(model: Transformer, arrays: Mapping[str, ArrayLike]) -> dict:
    """The variables of `model`, in float32 at least, from what `to_arrays` gives.

    Raises:
      ValueError: arrays that are missing, unknown, of another shape or not of floating numbers, all of them named.
    """
    arrays, expected = (
        {name: np.asarray(x) for name, x in arrays.items()},
        _abstract(model),
    )
    _check(
        arrays, _flat(expected), f"a Transformer with {model.shape} and {model.design}"
    )
    return {
        collection: unflatten_dict(
            {name: _wide(arrays[name]) for name in flatten_dict(tree, sep="/")}, sep="/"
        )
        for collection, tree in expected.items()
    }


# PyTorch's layout


def _shape(arrays, h, prefix):
    """The sizes that the names and one array tell."""
    first = f"{prefix}encoder.layers.0.linear1.weight"
    if first not in arrays or arrays[first].ndim != 2 or not arrays[first].size:
        raise ValueError(
            f"no matrix {first!r}, which tells d_model and d_ff; the names begin as "
            f"{', '.join(sorted(arrays)[:3])}; Names.transformer is what stands before 'encoder.'"
        )
    d_ff, d_model = arrays[first].shape
    if h < 1 or d_model % h:
        raise ValueError(f"d_model={d_model} must be divisible by h={h}")
    layers = [
        re.match(rf"{re.escape(prefix)}(en|de)coder\.layers\.(\d+)\.", name)
        for name in arrays
    ]
    N = max(int(match[2]) for match in layers if match) + 1
    if len(arrays) < N:  # before a model of so many is made
        raise ValueError(
            f"the names tell of {N} layers, and there are {len(arrays)} arrays"
        )
    return Shape(N, d_model, d_ff, h, d_model // h, d_model // h)


def _without_output_bias(arrays, names):
    name = names.output.removesuffix("weight") + "bias"
    if name in arrays and not np.array_equal(
        arrays[name], np.zeros(arrays[name].shape)
    ):
        raise ValueError(f"{name} is not 0, and this model's output has no bias")
    return {other: x for other, x in arrays.items() if other != name}


def _with_shared(arrays, names):
    """The embedding of the target and the output, each where missing the one before."""
    shared = dict(arrays)
    for name, before in (
        (names.target_embedding, names.source_embedding),
        (names.output, names.target_embedding),
    ):
        if before in shared:
            shared.setdefault(name, shared[before])
    return shared


def _design(arrays, told, names):
    has_final = any(
        f"{names.transformer}{stack}.norm.weight" in arrays for stack in NORMS
    )
    return told._replace(
        norm="pre" if told.norm == "pre" else "post_final" if has_final else "post",
        embeddings=_sharing(_with_shared(arrays, names), names),
        biases=any(name.endswith(ATTENTION_BIASES) for name in arrays),
    )


def _sharing(arrays, names):
    """Design.embeddings."""
    source, target, output = (arrays.get(name) for name in _embeddings(names))
    if target is None or not np.array_equal(target, output):
        return "separate"
    return "tied" if np.array_equal(source, target) else "target"


def _vocabulary(arrays, names):
    """1 where nothing tells it."""
    return next(
        (
            len(arrays[name])
            for name in _embeddings(names)
            if name in arrays and arrays[name].ndim == 2 and arrays[name].size
        ),
        1,
    )


def _embeddings(names):
    return names.source_embedding, names.target_embedding, names.output


def _zeros(arrays, expected):
    """The biases of a model that has none: of none of its attentions, or none at all."""
    kinds = [
        kind
        for kind in (ATTENTION_BIASES, "bias")
        if not any(name.endswith(kind) for name in arrays)
    ]
    return {
        name: np.zeros(x.shape, np.float32)
        for name, x in expected.items()
        if any(name.endswith(kind) for kind in kinds)
    }


def _written(model, variables, names) -> Iterator[tuple[str, np.ndarray]]:
    """Each array of a model, by PyTorch's name."""
    params, tables = variables["params"], variables["positions"]
    yield names.source_embedding, params.get("source_embedding", params["embedding"])
    yield names.target_embedding, params["embedding"]
    yield names.output, params.get("output", params["embedding"])
    if model.positions.trained:
        yield names.source_positions, tables["source_positions"]["table"]
        yield names.target_positions, tables["target_positions"]["table"]
    for stack in NORMS:
        for i in range(model.shape.N):
            for name, x in _layer_written(stack, params[f"{stack}_{i}"]):
                yield f"{names.transformer}{stack}.layers.{i}.{name}", x
        if model.design.norm != "post":
            norm = params[f"{stack}_norm"]
            yield f"{names.transformer}{stack}.norm.weight", norm["scale"]
            yield f"{names.transformer}{stack}.norm.bias", norm["bias"]


def _layer_written(stack, p):
    for theirs, ours in ATTENTIONS[stack].items():
        for name, x in _attention_written(p[ours]):
            yield f"{theirs}.{name}", x
    for theirs, ours in {"linear1": "w_1", "linear2": "w_2"}.items():
        yield f"{theirs}.weight", p["feed_forward"][ours]["kernel"].T
        yield f"{theirs}.bias", p["feed_forward"][ours]["bias"]
    for theirs, ours in NORMS[stack].items():
        yield f"{theirs}.weight", p[ours]["norm"]["scale"]
        yield f"{theirs}.bias", p[ours]["norm"]["bias"]


def _attention_written(p):
    """PyTorch's Linear has y = x Wᵀ, the rows of W head after head, and here those of queries, keys and values."""
    d_model, into = p["w_q"].shape[0], [p[name] for name in ("w_q", "w_k", "w_v")]
    biases = [
        p[name].ravel() if name in p else np.zeros(w[0].size, w.dtype)
        for name, w in zip(("b_q", "b_k", "b_v"), into, strict=True)
    ]
    yield "in_proj_weight", np.concatenate([w.reshape(d_model, -1).T for w in into])
    yield "in_proj_bias", np.concatenate(biases)
    yield "out_proj.weight", p["w_o"].reshape(-1, d_model).T
    yield "out_proj.bias", p.get("b_o", np.zeros(d_model, p["w_o"].dtype))


def _read(model, arrays, names):
    """The variables, from arrays that are all there."""
    design, length = model.design, model.length
    of_target = {"embedding": arrays[names.target_embedding]}
    of_source = (
        {"source_embedding": arrays[names.source_embedding]}
        if design.embeddings != "tied"
        else {}
    )
    output = {"output": arrays[names.output]} if design.embeddings == "separate" else {}
    params = of_target | of_source | output
    for stack in NORMS:
        for i in range(model.shape.N):
            inside = f"{names.transformer}{stack}.layers.{i}."
            params[f"{stack}_{i}"] = _layer_read(
                stack,
                {
                    name.removeprefix(inside): x
                    for name, x in arrays.items()
                    if name.startswith(inside)
                },
                model,
            )
        if design.norm != "post":
            params[f"{stack}_norm"] = _norm_read(
                arrays, f"{names.transformer}{stack}.norm"
            )
    tables = {
        "source_positions": names.source_positions,
        "target_positions": names.target_positions,
    }
    computed = (
        None
        if model.positions.trained
        else model.positions.init(jax.random.key(0), length, model.shape.d_model)
    )
    return {
        "params": params,
        "positions": {
            ours: {"table": arrays[theirs] if computed is None else computed}
            for ours, theirs in tables.items()
        },
    }


def _layer_read(stack, a, model):
    attentions = {
        ours: _attention_read(a, theirs, model)
        for theirs, ours in ATTENTIONS[stack].items()
    }
    norms = {
        ours: {"norm": _norm_read(a, theirs)} for theirs, ours in NORMS[stack].items()
    }
    return {
        **attentions,
        **norms,
        "feed_forward": {
            ours: {"kernel": a[f"{theirs}.weight"].T, "bias": a[f"{theirs}.bias"]}
            for theirs, ours in {"linear1": "w_1", "linear2": "w_2"}.items()
        },
    }


def _attention_read(a, name, model):
    d_model, h = model.shape.d_model, model.shape.h
    into = [
        w.T.reshape(d_model, h, -1) for w in np.split(a[f"{name}.in_proj_weight"], 3)
    ]
    weights = dict(zip(("w_q", "w_k", "w_v"), into, strict=True))
    weights["w_o"] = a[f"{name}.out_proj.weight"].T.reshape(h, -1, d_model)
    if not model.design.biases:
        return weights
    biases = [b.reshape(h, -1) for b in np.split(a[f"{name}.in_proj_bias"], 3)]
    return {
        **weights,
        **dict(zip(("b_q", "b_k", "b_v"), biases, strict=True)),
        "b_o": a[f"{name}.out_proj.bias"],
    }


def _norm_read(a, name):
    return {"scale": a[f"{name}.weight"], "bias": a[f"{name}.bias"]}


# Both


def _abstract(model):
    """The shapes of a model's variables."""
    ids, every = jnp.zeros((1, 1), jnp.int32), Mask()
    return jax.eval_shape(
        lambda key: model.init(
            key,
            ids,
            ids,
            ids,
            ids,
            source_mask=every,
            target_mask=every,
            cross_mask=every,
        ),
        jax.random.key(0),
    )


def _flat(variables):
    return {
        name: x
        for tree in variables.values()
        for name, x in flatten_dict(tree, sep="/").items()
    }


def _wide(x):
    return jnp.asarray(x.astype(np.promote_types(x.dtype, np.float32)))


def _check(arrays, expected, what):
    """Raises a ValueError with all that is wrong."""
    found = [
        f"missing: {', '.join(names)}"
        for names in [sorted(expected.keys() - arrays.keys())]
        if names
    ]
    found += [
        f"unknown: {', '.join(names)}"
        for names in [sorted(arrays.keys() - expected.keys())]
        if names
    ]
    for name in sorted(expected.keys() & arrays.keys()):
        if arrays[name].shape != expected[name].shape:
            found.append(
                f"{name} has shape {arrays[name].shape}, not {expected[name].shape}"
            )
        elif not jnp.issubdtype(arrays[name].dtype, jnp.floating):
            found.append(
                f"{name} is of {arrays[name].dtype} and not of floating numbers"
            )
    if found:
        raise ValueError(f"not the arrays of {what}: {'; '.join(found)}")
