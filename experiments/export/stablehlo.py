"""Decoding of one text as two programs of StableHLO, which need jax alone.

    arrays = safetensors.numpy.load_file("model.safetensors")
    start, step = (jax.export.deserialize(bytes) for …)
    state = start.call(arrays, source, lengths)          # of a language model start.call(arrays)
    logits, state = step.call(arrays, tokens, t, state)  # t = 0, 1, …; tokens (1,), BOS first

N = the most tokens of a source, Y tokens.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

import attn.io
from attn import Context, Decoding, Mask
from attn.nn.layers import output_matrix
from experiments.data.vocabulary import BOS, EOS, FILE
from experiments.errors import UserError
from experiments.inference import WEIGHTS, TrainedModel
from experiments.trial.program import build_model

PLATFORMS = ("cpu", "cuda", "tpu")
"""The machines that the programs are for."""


def to_stablehlo(workdir: Path, model: TrainedModel, directory: Path) -> str:
    """Writes start.stablehlo, step.stablehlo, arrays and vocabulary; returns how they are used.

    Raises UserError for a model that writes no text, or where flatbuffers is missing.
    """
    objective = model.program.objective
    if not objective.searches and objective.writes:
        raise UserError(f"{workdir} has a model that writes no text, token after token")
    if importlib.util.find_spec("flatbuffers") is None:
        raise UserError(
            "--format=stablehlo needs the package flatbuffers: pip install 'attn[export]'"
        )
    start, step = _programs(model, with_source=objective.searches)
    arrays = attn.io.to_arrays(model.state.variables)
    attn.io.save(directory / WEIGHTS, arrays)
    shutil.copyfile(workdir / FILE, directory / FILE)
    n = model.program.length
    source = (_ints(1, n), _ints(1)) if objective.searches else ()
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
    state = jax.eval_shape(start, like, *source)
    called = dict(
        start=(start, (like, *source)), step=(step, (like, _ints(1), _ints(), state))
    )
    for name, (function, arguments) in called.items():
        exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
        (directory / f"{name}.stablehlo").write_bytes(exported.serialize())
    about = dict(
        source_tokens=n if objective.searches else 0,
        tokens=model.settings.evaluation.max_length,
        bos=BOS,
        eos=EOS,
        vocabulary=model.vocabulary.size,
    )
    (directory / "export.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    return (
        "jax.export.deserialize reads start.stablehlo and step.stablehlo; "
        "experiments/export/stablehlo.py says how they are called"
    )


def _ints(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _programs(trained: TrainedModel, with_source: bool):
    """Returns start(arrays, …) -> state and step(arrays, tokens, t, state) -> logits, state."""
    model = build_model(trained.program)
    updates = int(trained.state.step)
    room = trained.settings.evaluation.max_length
    # Names alone do not say which collection an array is of.
    kinds = {
        kind: [*flatten_dict(tree, sep="/")]
        for kind, tree in trained.state.variables.items()
    }

    def call(arrays, method, *arguments):
        variables = {
            kind: unflatten_dict({name: arrays[name] for name in names}, sep="/")
            for kind, names in kinds.items()
        }
        return model.apply(variables, *arguments, method=method), variables

    def start(arrays, source=None, lengths=None):
        state = {}
        if with_source:
            ctx = Context(Mask.padding(lengths), step=updates)
            encoded, _ = call(arrays, "encode", source, ctx)
            memory, _ = call(arrays, "project_memory", encoded)
            state = dict(memory=memory, lengths=lengths)
        caches, _ = call(arrays, "empty_caches", 1, room, jnp.float32)
        return state | dict(caches=caches)

    def step(arrays, tokens, t, state):
        visible = (jnp.arange(room) <= t)[None, None]
        memory = state.get("memory")
        seen = None
        if with_source:
            places = jnp.arange(trained.program.length)[None]
            seen = (places < state["lengths"][:, None])[:, None]
        at = Decoding(t, visible, seen)
        ctx = Context(step=updates, memory=memory, decoding=at, cache=state["caches"])
        (hidden, ctx), variables = call(arrays, "decode", tokens[:, None], ctx)
        logits = hidden[:, 0] @ output_matrix(variables["params"]).T
        return logits, state | dict(caches=ctx.cache)

    return start, step
