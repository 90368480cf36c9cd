"""Weights of PyTorch's nn.Transformer, and plain dictionaries of any model's arrays.

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

from attn.masks import Mask
from attn.models.design import Design, Shape
from attn.models.transformer import Transformer
from attn.normalisers import Softmax, normaliser_init
from attn.positions import Learned
from attn.scores import ScaledDot, score_init

ATTENTIONS = {
    "encoder": {"self_attn": "self_attention"},
    "decoder": {"self_attn": "self_attention", "multihead_attn": "cross_attention"},
}
"""The attentions of a layer, ours by PyTorch's names."""
NORMS = {
    "encoder": {"norm1": "self_norm", "norm2": "feed_forward_norm"},
    "decoder": {
        "norm1": "self_norm",
        "norm2": "cross_norm",
        "norm3": "feed_forward_norm",
    },
}
LINEARS = {"linear1": "w_1", "linear2": "w_2"}
ATTENTION_BIASES = ("in_proj_bias", "out_proj.bias")


class Names(NamedTuple):
    """The names of the arrays that nn.Transformer leaves to its user."""

    transformer: str = ""
    """The prefix of nn.Transformer's own names, as "transformer."."""
    source_embedding: str = "src_embed.weight"
    target_embedding: str = "tgt_embed.weight"
    """(Y, D) like the source's; where an array of this name is missing, it is the
    source's."""
    output: str = "generator.weight"
    """(Y, D), of a Linear without bias; where it is missing, it is the target's
    embedding."""
    source_positions: str = "src_pos.weight"
    """(L, D), trained; may be the same name as the target's."""
    target_positions: str = "tgt_pos.weight"


def from_torch(
    arrays: Mapping[str, ArrayLike],
    h: int,
    design: Design = Design(norm_epsilon=1e-5),
    *,
    length: int = 1024,
    names: Names = Names(),
) -> tuple[Transformer, dict]:
    """Makes a model and its variables from a state_dict of torch.nn.Transformer.

    The variables are in float32 at least. N, d_model, d_ff and the vocabulary are read
    from the arrays, and so is most of the design: the final LayerNorms, which
    nn.Transformer has by default, mean norm="post_final"; embeddings are tied where arrays
    are equal; `biases` is whether any attention has them. With bias=False nn.Transformer
    has none at all, and those which this model always has become 0. A position table among
    the arrays is Learned. `model.clone(P_drop=…)` has another dropout.

    Args:
      arrays: by name; a state_dict itself, or the arrays of `load`.
      h: nhead, which the arrays do not show.
      design: the rest that they do not show: norm="pre" for norm_first=True, activation,
        norm_epsilon (PyTorch's by default), scale_embeddings, whether the model
        multiplies its embeddings by √d_model, and the positions of arrays without a table.
      length: the positions of the table, where the arrays have none.
      names: of embeddings and tables, and the prefix of the other names.

    Raises:
      ValueError: arrays that are missing, unknown, of another shape or not of floating
        numbers, all of them named; an h that does not divide d_model; an output bias that
        is not 0.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    shape = _shape(arrays, h, names.transformer)
    arrays = _without_output_bias(arrays, names)
    # An array of another rank is no table; `_check` names it below.
    tables = [
        arrays[name]
        for name in (names.source_positions, names.target_positions)
        if name in arrays and arrays[name].ndim == 2
    ]
    if tables:
        design = design._replace(positions=Learned())
        length = len(tables[0])
    design = _design(arrays, design, names)
    model = Transformer(shape, _vocabulary(arrays, names), length, design)
    # dtype bool to save memory: only names and shapes are compared.
    empty = jax.tree.map(lambda x: np.zeros(x.shape, bool), _abstract(model))
    expected = dict(_written(model, empty, names))
    zeros = _zeros(arrays, expected)
    shared = {names.target_embedding, names.output} - arrays.keys()
    needed = {name: x for name, x in expected.items() if name not in {*zeros, *shared}}
    sizes = f"N={shape.N}, d_model={shape.d_model}, d_ff={shape.d_ff}"
    _check(arrays, needed, f"an nn.Transformer of {sizes}")
    variables = _read(model, zeros | _with_shared(arrays, names), names)
    return model, jax.tree.map(_wide, variables)


def to_torch(
    model: Transformer,
    variables,
    names: Names = Names(),
) -> dict[str, np.ndarray]:
    """Returns the arrays of a model by nn.Transformer's names.

    Its load_state_dict takes them (by torch.from_numpy). Embeddings and the output are
    written each by its name, also where they are one matrix, and attention without biases
    has biases of 0. norm="pre" is norm_first=True; norm="post" is written without the
    final LayerNorms, which such an nn.Transformer has to be without too: its encoder.norm
    and decoder.norm are None. Sinusoids are not written.

    Raises:
      ValueError: a model that nn.Transformer does not have: h·d_k or h·d_v other than
        d_model, another score than "scaled_dot" or normaliser than softmax, heads that are
        not separate, a gate, positions in the layers; position tables that differ and have
        one name.
    """
    _check_exportable(model)
    variables = jax.tree.map(np.asarray, variables)
    tables = [table["table"] for table in variables["positions"].values()]
    one_name = names.source_positions == names.target_positions
    trained = model.design.positions.trained
    if trained and one_name and not np.array_equal(*tables):
        raise ValueError(
            "the position tables of source and target differ and cannot both be "
            f"{names.source_positions!r}; give them two names"
        )
    written = _written(model, variables, names)
    # Copies: torch.from_numpy shares memory, and that of JAX is read-only.
    return {name: np.array(x, order="C") for name, x in written}


def to_arrays(variables) -> dict[str, np.ndarray]:
    """Returns all variables of any model as one flat dictionary.

    Names are such as "encoder_0/self_attention/w_q" and "source_positions/table".
    """
    return {name: np.array(x) for name, x in _flat(variables).items()}


def from_arrays(model: Transformer, arrays: Mapping[str, ArrayLike]) -> dict:
    """Returns the variables of `model`, in float32 at least, from those of `to_arrays`.

    Raises:
      ValueError: arrays that are missing, unknown, of another shape or not of floating
        numbers, all of them named.
    """
    arrays = {name: np.asarray(x) for name, x in arrays.items()}
    expected = _abstract(model)
    described = f"a Transformer with {model.shape} and {model.design}"
    _check(arrays, _flat(expected), described)
    variables = {}
    for collection, tree in expected.items():
        flat = {name: _wide(arrays[name]) for name in flatten_dict(tree, sep="/")}
        variables[collection] = unflatten_dict(flat, sep="/")
    return variables


def _check_exportable(model):
    shape = model.shape
    design = model.design
    if not shape.h * shape.d_k == shape.h * shape.d_v == shape.d_model:
        raise ValueError(
            f"nn.Transformer needs h·d_k = h·d_v = d_model, got h={shape.h}, "
            f"d_k={shape.d_k}, d_v={shape.d_v}, d_model={shape.d_model}; "
            "to_arrays writes any model"
        )
    if shape.h_kv not in (None, shape.h) or shape.d_c is not None:
        raise ValueError(
            f"nn.Transformer has keys and values for each head, and not h_kv={shape.h_kv}, "
            f"d_c={shape.d_c} with h={shape.h}; to_arrays writes any model"
        )
    fields = ["combine", "head_activation", "selection", "heads", "gate"]
    fields += ["encoder_mixing", "decoder_mixing"]
    other = [
        name for name in fields if getattr(design, name) != getattr(Design(), name)
    ]
    # By what it stands for: a name and its class are the same score.
    if score_init(design.score) != ScaledDot.init:
        other.append("score")
    if normaliser_init(design.normaliser) != Softmax.init:
        other.append("normaliser")
    if not design.positions.is_data:
        other.append("positions")
    for name in other:
        raise ValueError(
            f"nn.Transformer has no {name}={getattr(design, name)!r}; "
            "to_arrays writes any model"
        )


# PyTorch's layout


def _shape(arrays, h, prefix):
    """Returns the sizes that the names and one array show."""
    first = f"{prefix}encoder.layers.0.linear1.weight"
    if first not in arrays or arrays[first].ndim != 2 or not arrays[first].size:
        raise ValueError(
            f"no matrix {first!r}, which shows d_model and d_ff; the names begin as "
            f"{', '.join(sorted(arrays)[:3])}; Names.transformer is the prefix of 'encoder.'"
        )
    d_ff, d_model = arrays[first].shape
    if h < 1 or d_model % h:
        raise ValueError(f"d_model={d_model} must be divisible by h={h}")
    pattern = rf"{re.escape(prefix)}(en|de)coder\.layers\.(\d+)\."
    matches = [re.match(pattern, name) for name in arrays]
    N = max(int(match[2]) for match in matches if match) + 1
    # Before a model of so many is made.
    if len(arrays) < N:
        raise ValueError(
            f"the names are of {N} layers, and there are {len(arrays)} arrays"
        )
    return Shape(N, d_model, d_ff, h, d_model // h, d_model // h)


def _without_output_bias(arrays, names):
    name = names.output.removesuffix("weight") + "bias"
    bias = arrays.get(name)
    if bias is not None and not np.array_equal(bias, np.zeros(bias.shape)):
        raise ValueError(f"{name} is not 0, and this model's output has no bias")
    return {other: x for other, x in arrays.items() if other != name}


def _with_shared(arrays, names):
    """Returns arrays with the target's embedding and the output.

    Each is, where missing, the one before.
    """
    shared = dict(arrays)
    before = names.source_embedding
    for name in (names.target_embedding, names.output):
        if before in shared:
            shared.setdefault(name, shared[before])
        before = name
    return shared


def _design(arrays, design, names):
    """Returns the design with the fields that the arrays show."""
    norm = "post"
    if any(f"{names.transformer}{stack}.norm.weight" in arrays for stack in NORMS):
        norm = "post_final"
    # Arrays of pre-norm look like those of post_final, so the caller must tell.
    if design.norm == "pre":
        norm = "pre"
    return design._replace(
        norm=norm,
        embeddings=_sharing(_with_shared(arrays, names), names),
        biases=any(name.endswith(ATTENTION_BIASES) for name in arrays),
    )


def _sharing(arrays, names):
    """Returns Design.embeddings."""
    # By value, because a state_dict holds a tied matrix once for each of its names.
    source, target, output = (arrays.get(name) for name in _embeddings(names))
    if target is None or not np.array_equal(target, output):
        return "separate"
    return "tied" if np.array_equal(source, target) else "target"


def _vocabulary(arrays, names):
    """Returns the size of the vocabulary, 1 where no array shows it."""
    for name in _embeddings(names):
        if name in arrays and arrays[name].ndim == 2 and arrays[name].size:
            return len(arrays[name])
    # Any number serves: a model without embeddings is refused by `_check`.
    return 1


def _embeddings(names):
    return names.source_embedding, names.target_embedding, names.output


def _zeros(arrays, expected):
    """Returns the biases that the model lacks: in all its attentions, or everywhere."""
    zeros = {}
    for kind in (ATTENTION_BIASES, "bias"):
        if any(name.endswith(kind) for name in arrays):
            continue
        for name, x in expected.items():
            if name.endswith(kind):
                zeros[name] = np.zeros(x.shape, np.float32)
    return zeros


def _written(model, variables, names) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each array of a model, by PyTorch's name."""
    params = variables["params"]
    tables = variables["positions"]
    embedding = params["embedding"]
    yield names.source_embedding, params.get("source_embedding", embedding)
    yield names.target_embedding, embedding
    yield names.output, params.get("output", embedding)
    if model.design.positions.trained:
        yield names.source_positions, tables["source_positions"]["table"]
        yield names.target_positions, tables["target_positions"]["table"]
    for stack in NORMS:
        prefix = f"{names.transformer}{stack}"
        for i in range(model.shape.N):
            for name, x in _layer_written(stack, params[f"{stack}_{i}"]):
                yield f"{prefix}.layers.{i}.{name}", x
        if model.design.norm != "post":
            norm = params[f"{stack}_norm"]
            yield f"{prefix}.norm.weight", norm["scale"]
            yield f"{prefix}.norm.bias", norm["bias"]


def _layer_written(stack, p):
    for theirs, ours in ATTENTIONS[stack].items():
        for name, x in _attention_written(p[ours]):
            yield f"{theirs}.{name}", x
    for theirs, ours in LINEARS.items():
        # nn.Linear keeps its matrix as (out, in), Linen as (in, out).
        yield f"{theirs}.weight", p["feed_forward"][ours]["kernel"].T
        yield f"{theirs}.bias", p["feed_forward"][ours]["bias"]
    for theirs, ours in NORMS[stack].items():
        yield f"{theirs}.weight", p[ours]["norm"]["scale"]
        yield f"{theirs}.bias", p[ours]["norm"]["bias"]


def _attention_written(p):
    """Yields the arrays of one attention.

    PyTorch's Linear has y = x Wᵀ, the rows of W head after head, and here those of
    queries, keys and values.
    """
    d_model = p["w_q"].shape[0]
    weights = []
    biases = []
    for letter in "qkv":
        w = p[f"w_{letter}"]
        weights.append(w.reshape(d_model, -1).T)
        zeros = np.zeros(w[0].size, w.dtype)
        biases.append(p.get(f"b_{letter}", zeros).ravel())
    yield "in_proj_weight", np.concatenate(weights)
    yield "in_proj_bias", np.concatenate(biases)
    yield "out_proj.weight", p["w_o"].reshape(-1, d_model).T
    yield "out_proj.bias", p.get("b_o", np.zeros(d_model, p["w_o"].dtype))


def _read(model, arrays, names):
    """Returns the variables, from arrays that are all there."""
    design = model.design
    params = {"embedding": arrays[names.target_embedding]}
    if design.embeddings != "tied":
        params["source_embedding"] = arrays[names.source_embedding]
    if design.embeddings == "separate":
        params["output"] = arrays[names.output]
    for stack in NORMS:
        for i in range(model.shape.N):
            prefix = f"{names.transformer}{stack}.layers.{i}."
            layer = {
                name.removeprefix(prefix): x
                for name, x in arrays.items()
                if name.startswith(prefix)
            }
            params[f"{stack}_{i}"] = _layer_read(stack, layer, model)
        if design.norm != "post":
            norm = _norm_read(arrays, f"{names.transformer}{stack}.norm")
            params[f"{stack}_norm"] = norm
    if design.positions.trained:
        source = arrays[names.source_positions]
        target = arrays[names.target_positions]
    else:
        d_model = model.shape.d_model
        source = design.positions.table(jax.random.key(0), model.length, d_model)
        target = source
    positions = {
        "source_positions": {"table": source},
        "target_positions": {"table": target},
    }
    return {"params": params, "positions": positions}


def _layer_read(stack, a, model):
    layer = {}
    for theirs, ours in ATTENTIONS[stack].items():
        layer[ours] = _attention_read(a, theirs, model)
    for theirs, ours in NORMS[stack].items():
        layer[ours] = {"norm": _norm_read(a, theirs)}
    layer["feed_forward"] = {
        ours: {"kernel": a[f"{theirs}.weight"].T, "bias": a[f"{theirs}.bias"]}
        for theirs, ours in LINEARS.items()
    }
    return layer


def _attention_read(a, name, model):
    d_model = model.shape.d_model
    h = model.shape.h
    attention = {}
    weights = np.split(a[f"{name}.in_proj_weight"], 3)
    for letter, w in zip("qkv", weights, strict=True):
        attention[f"w_{letter}"] = w.T.reshape(d_model, h, -1)
    attention["w_o"] = a[f"{name}.out_proj.weight"].T.reshape(h, -1, d_model)
    if model.design.biases:
        biases = np.split(a[f"{name}.in_proj_bias"], 3)
        for letter, b in zip("qkv", biases, strict=True):
            attention[f"b_{letter}"] = b.reshape(h, -1)
        attention["b_o"] = a[f"{name}.out_proj.bias"]
    return attention


def _norm_read(a, name):
    return {"scale": a[f"{name}.weight"], "bias": a[f"{name}.bias"]}


# Both


def _abstract(model):
    """Returns the shapes of a model's variables."""
    ids = jnp.zeros((1, 1), jnp.int32)
    everything = Mask()

    def init(key):
        return model.init(
            key,
            ids,
            ids,
            ids,
            ids,
            source_mask=everything,
            target_mask=everything,
            cross_mask=everything,
        )

    return jax.eval_shape(init, jax.random.key(0))


def _flat(variables):
    flat = {}
    # Parameters and tables never have a name in common, so collections are left out.
    for tree in variables.values():
        flat |= flatten_dict(tree, sep="/")
    return flat


def _wide(x):
    return jnp.asarray(x.astype(np.promote_types(x.dtype, np.float32)))


def _check(arrays, expected, described):
    """Raises a ValueError with all that is wrong."""
    wrong = []
    missing = sorted(expected.keys() - arrays.keys())
    if missing:
        wrong.append(f"missing: {', '.join(missing)}")
    unknown = sorted(arrays.keys() - expected.keys())
    if unknown:
        wrong.append(f"unknown: {', '.join(unknown)}")
    for name in sorted(expected.keys() & arrays.keys()):
        x = arrays[name]
        if x.shape != expected[name].shape:
            wrong.append(f"{name} has shape {x.shape}, not {expected[name].shape}")
        elif not jnp.issubdtype(x.dtype, jnp.floating):
            wrong.append(f"{name} is of {x.dtype} and not of floating numbers")
    if wrong:
        raise ValueError(f"not the arrays of {described}: {'; '.join(wrong)}")
