"""A Transformer of the paper's kind for CTranslate2.

H = h, K = d_k, D = d_model, Y tokens.
"""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attn import SelfAttention, config
from attn.nn import layers, norms
from attn.positions import Positions
from experiments.data.vocabulary import BOS, EOS, FILE, PAD, UNK
from experiments.errors import UserError
from experiments.inference import TrainedModel

MARKS = {PAD: "<blank>", BOS: "<s>", EOS: "</s>", UNK: "<unk>"}
"""The control tokens by the names that CTranslate2 has for them."""

ACTIVATIONS = {layers.ReLU: "RELU", layers.GELU: "GELU", layers.SiLU: "SWISH"}
"""The feed-forward networks that CTranslate2 has, and their names there."""

SIZES = ("d_model", "h", "d_k", "d_v", "d_ff", "positions", "feed_forward", "norm")
"""The options of a layer that may be others than the paper's in CTranslate2."""


def to_ctranslate2(workdir: Path, model: TrainedModel, directory: Path) -> str:
    """Writes a Transformer of the paper's kind, in float32."""
    described = model.settings.model
    check_ctranslate2(described)
    spec = ctranslate2_spec(
        described,
        model.state.params,
        _tables(model),
        model.vocabulary.tokens(range(model.vocabulary.size)),
    )
    spec.validate()
    spec.save(str(directory))
    shutil.copyfile(workdir / FILE, directory / FILE)
    return (
        f"ctranslate2.Translator('{directory}').translate_batch of the pieces of "
        f"{directory}/{FILE}. Its length_penalty is another one than evaluation.alpha, and its "
        "min_decoding_length is 0 here"
    )


def check_ctranslate2(described: config.Model) -> None:
    """Raises UserError for a model that CTranslate2 cannot express, naming what."""

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise UserError(f"CTranslate2 cannot express {what}")

    require(isinstance(described, config.Transformer), f"model.kind={described.kind}")
    require(described.selection == "soft", f"model.selection={described.selection}")
    plain = config.Block(64, 1, 64, 64)
    first = described.stack("encoder")[0]
    for part in ("encoder", "decoder"):
        for block in (*described.stack(part), *described.cross_attentions()):
            for field in dataclasses.fields(block):
                name, value = field.name, getattr(block, field.name)
                if name not in SIZES:
                    require(value == getattr(plain, name), f"model.{name}={value}")
            kind = type(block.positions)
            is_table = not kind.in_layers and kind.places is Positions.places
            alike = block.h == first.h and is_table
            require(alike, f"positions={block.positions} or h={block.h} of a layer")
            wide = block.h * block.d_k == block.h * block.d_v == block.d_model
            require(
                wide,
                f"h·d_k={block.h * block.d_k} or h·d_v={block.h * block.d_v} other than "
                f"d_model={block.d_model}",
            )
        for block in described.stack(part):
            require(
                block.norm == first.norm and block.norm.kind == "layer", f"{block.norm}"
            )
            require(type(block.norm) in (norms.Post, norms.Pre), f"{block.norm}")
            same = block.feed_forward == first.feed_forward
            require(
                same and type(block.feed_forward) in ACTIVATIONS,
                f"model.feed_forward={block.feed_forward}",
            )


def ctranslate2_spec(
    described: config.Transformer,
    params: Mapping[str, Any],
    tables: Sequence[np.ndarray],
    words: Sequence[str],
) -> Any:
    """Returns a model of CTranslate2, from parameters and the tables of source and target.

    Raises UserError where the package ctranslate2 is missing.
    """
    try:
        from ctranslate2.specs import Activation, TransformerSpec
    except ImportError:
        raise UserError(
            "--format=ctranslate2 needs the package ctranslate2: pip install 'attn[export]'"
        ) from None
    (block, *_) = described.stack("encoder")
    spec = TransformerSpec.from_config(
        (described.layers("encoder"), described.layers("decoder")),
        block.h,
        pre_norm=block.norm.before,
        activation=Activation[ACTIVATIONS[type(block.feed_forward)]],
    )
    words = [MARKS.get(i, word) for i, word in enumerate(words)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = block.norm.epsilon
    embedding = np.asarray(params["embedding"])
    source = np.asarray(params.get("source_embedding", embedding))
    sides = (spec.encoder, "encoder", source), (spec.decoder, "decoder", embedding)
    for (side, name, matrix), table in zip(sides, tables, strict=True):
        own = side.embeddings[0] if name == "encoder" else side.embeddings
        own.weight = matrix * np.float32(described.scale)
        side.scale_embeddings = False
        side.position_encodings.encodings = np.asarray(table)
        for i, layer in enumerate(side.layer):
            _fill_layer(layer, params[f"{name}_{i}"])
        if described.final_norm(name):
            _fill_norm(side.layer_norm, params[f"{name}_norm"])
    spec.decoder.projection.weight = np.asarray(
        params.get("output", params["embedding"])
    )
    return spec


def _tables(model: TrainedModel) -> list[np.ndarray]:
    positions = model.state.positions
    names = ("source_positions", "target_positions")
    return [np.asarray(positions[name]["table"]) for name in names]


def _fill_layer(layer, w):
    # CTranslate2 has one matrix for all projections of one input.
    joined = [["w_q", "w_k", "w_v"]]
    own = w["self_norm"]["norm"]
    _fill_attention(layer.self_attention, own, w[SelfAttention.name], joined)
    if "cross_attention" in w:
        joined = [["w_q"], ["w_k", "w_v"]]
        own = w["cross_norm"]["norm"]
        _fill_attention(layer.attention, own, w["cross_attention"], joined)
    _fill_linear(layer.ffn.linear_0, w["feed_forward"]["w_1"])
    _fill_linear(layer.ffn.linear_1, w["feed_forward"]["w_2"])
    _fill_norm(layer.ffn.layer_norm, w["feed_forward_norm"]["norm"])


def _fill_linear(linear, w):
    # Flax has (inputs, outputs), CTranslate2 the transpose.
    linear.weight = np.ascontiguousarray(np.asarray(w["kernel"]).T)
    linear.bias = np.asarray(w["bias"])


def _fill_attention(attention, norm, w, joined):
    """Fills one attention.

    `joined` names, for each matrix before the last, the projections that stand in it.
    """
    *linears, last = attention.linear
    for linear, names in zip(linears, joined, strict=True):
        # Projections into heads are (D, H, K).
        matrices = [np.asarray(w[name]) for name in names]
        linear.weight = np.concatenate([x.reshape(len(x), -1).T for x in matrices])
    out = np.asarray(w["w_o"])
    # CTranslate2 writes the bytes of an array as they lie in memory.
    last.weight = np.ascontiguousarray(out.reshape(-1, out.shape[-1]).T)
    _fill_norm(attention.layer_norm, norm)


def _fill_norm(layer_norm, w):
    layer_norm.gamma = np.asarray(w["scale"])
    layer_norm.beta = np.asarray(w["bias"])
