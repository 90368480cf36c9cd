"""What a trial costs before it runs: parameters, FLOPs and memory, from its settings.

What cannot be known is None: see `is_known`. What is `assumed` always is a number, by which
trials are laid out but which nobody is shown.
"""

import dataclasses
import functools

import jax

from attn import NoPositions, config, platforms
from attn.attention import SMALL
from experiments.optim import moment_shapes
from experiments.settings import Settings, SettingsError
from experiments.system.machine import Machine
from experiments.trial import flops
from experiments.trial.program import (
    Program,
    initial_variables,
    program_of,
)


def is_known(settings: Settings) -> bool:
    """Whether the formulas for memory apply: to models of which every part is the library's."""
    is_own = not settings.outside(["model"])
    return is_own and flops_of_a_step(settings) is not None


def parameters(settings: Settings) -> int | None:
    """Counts the numbers that are trained; None where the corpus decides its vocabulary.

    Learned positions may be more, where the corpus has sentences longer than a row.
    """
    has_size = settings.data.has_set_vocabulary
    return assumed_parameters(settings) if has_size else None


def assumed_parameters(settings: Settings) -> int:
    """Counts as `parameters`, with a vocabulary of the size that is set."""
    return _over_parameters(settings, _size)


def _over_parameters(settings, measure):
    """Returns the sum of measure(tree) over trees that have each trained parameter once."""
    program = program_without_corpus(settings)
    params = all_variable_shapes(with_one_layer(program))["params"]
    first_layers = {name: x for name, x in params.items() if name.endswith("_0")}
    # The shapes have one layer a stack, because tracing all layers takes longer.
    total = measure(params) + (settings.model.N - 1) * measure(first_layers)
    whole = all_variable_shapes
    if settings.outside(["model"]) or not is_uniform(settings.model):
        # Layers of such parts may differ from the first.
        total = measure(whole(program)["params"])
    tables = whole(with_one_layer(program)).get("positions", {})
    for name, positions in settings.model.tables().items():
        if positions.trained:
            total += measure(tables[name])
    return total


def is_uniform(model):
    """Whether all layers of a model's stacks are alike, and as many in each."""
    return not any(getattr(model, part) for part in getattr(model, "parts", ()))


def _size(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def flops_of_a_step(settings: Settings) -> int | None:
    """Counts as `flops.of_training` does, for rows that one pair fills each.

    Packed pairs need less for attention. None for a model that does not state its products,
    and where the corpus decides its vocabulary.
    """
    return _flops_of_rows(settings) if settings.data.has_set_vocabulary else None


def assumed_flops_of_a_step(settings: Settings) -> int:
    """Counts as `flops_of_a_step`; where that is unknown, 6 for each parameter and token."""
    t = settings.training
    tokens = t.batch_size * t.sequence_length
    return _flops_of_rows(settings) or 6 * tokens * assumed_parameters(settings)


def _flops_of_rows(settings):
    t = settings.training
    whole = [t.sequence_length] * t.batch_size
    return flops.of_training(program_without_corpus(settings), whole, whole)


def memory(settings: Settings, devices: int = 1) -> int | None:
    """Estimates the bytes of one trial while it trains, on each device of its rows.

    That is its share of `activation_memory`, and with P parameters

        4·P·(parameters and gradients 2, moving average 1) + the optimizer's own state

    None for models that the formulas do not know.
    """
    return assumed_memory(settings, devices) if is_known(settings) else None


def assumed_memory(settings: Settings, devices: int = 1) -> int:
    """Estimates as `memory`, with parts from outside taken for the library's own."""
    t = settings.training
    copies = 2 + (t.ema > 0)
    recipe = program_without_corpus(settings).recipe
    moments = _over_parameters(settings, lambda tree: _bytes_of_moments(recipe, tree))
    kept = activation_memory(settings) // devices
    return 4 * assumed_parameters(settings) * copies + moments + kept


def _bytes_of_moments(recipe, tree):
    shapes = jax.tree.leaves(moment_shapes(recipe, tree))
    return sum(x.size * x.dtype.itemsize for x in shapes)


def decoding_memory(settings: Settings) -> int:
    """Estimates the least bytes of a search.

    They are for parameters, the encoder's widest layer, all caches, hypotheses and their
    logits, with B sentences at once, K = beam, T tokens of a translation, L of a source,
    Y = vocabulary:

        4·P + B·(4·L·d_ff + 4·N·h_kv·(d_k + d_v)·(T·K + L) + T·K² + 4·K·Y)

    Differential heads have 2·d_k in place of d_k. Of latents there are d_c in place of
    h_kv·(d_k + d_v), one more with biases, and in the decoder's own cache d_r more.
    """
    e = settings.evaluation
    length = program_without_corpus(settings).length
    entries = e.max_length * e.beam
    caches = 0
    for block in _decoder(settings.model):
        of_token = block.heads_of_keys * (block.width + block.d_v)
        if block.d_c:
            of_token = block.d_c + block.biases
        caches += of_token * (entries + length) + block.d_r * entries
    logits = e.beam * settings.data.vocabulary_size
    widest = max(block.d_ff for block in _encoder(settings.model))
    floats = length * widest + caches + logits
    of_sentence = 4 * floats + e.max_length * e.beam**2
    return 4 * assumed_parameters(settings) + e.batch_size * of_sentence


def attention_maps_memory(settings: Settings) -> int:
    """Estimates the least bytes of the attention weights of examples: 3·4·N·h·L² each."""
    length = program_without_corpus(settings).length
    heads = sum(block.h for block in _decoder(settings.model))
    return 12 * settings.evaluation.examples * heads * length**2


def _decoder(model):
    """Returns the layers of a model's decoder, if any; those of an RNN are of one head."""
    if isinstance(model, config.RNN):
        d = model.d_model
        return [config.Block(d, 1, d, d, d_ff=1, positions=NoPositions())] * model.N
    return model.stack("decoder") if hasattr(model, "decoder") else []


def _encoder(model):
    """Returns the layers of a model's encoder, or, without one, of its decoder."""
    return model.stack("encoder") if hasattr(model, "encoder") else _decoder(model)


def check_memory(
    settings: Settings, machine: Machine, *, workers: int = 1, lanes: int = 1
) -> None:
    """Raises SettingsError for trials that cannot fit, naming a setting that would do.

    `lanes` trials run at a time in each of `workers` processes. An accelerator passes with
    twice what it has: `activation_memory` is fitted to a CPU, and other compilers keep less.
    So do models whose memory is not known.
    """
    if machine.memory is None or not is_known(settings):
        return
    cpu = machine.backend == "cpu"
    have = machine.memory if cpu else 2 * machine.memory
    # Devices of a CPU share its memory.
    split = 1 if cpu or lanes > 1 else machine.devices
    at_once = workers * (lanes if cpu else -(-lanes // machine.devices))
    owner = "this machine" if cpu else "a device"
    there = f"and {owner} has {format_bytes(machine.memory)}"
    need = memory(settings, split)
    # Where one alone does not fit either, fewer at a time is no remedy.
    if at_once > 1 and at_once * need > have >= need:
        raise SettingsError(
            f"{at_once} trials at once need about {format_bytes(at_once * need)} of "
            f"memory {there}; --workers=1 --lanes=1 runs one at a time"
        )
    if need > have:
        raise SettingsError(
            f"training needs about {format_bytes(need)} of memory {there}; "
            + remedy(settings, need - have, split)
        )
    e = settings.evaluation
    searched = decoding_memory(settings)
    shown = attention_maps_memory(settings)
    if searched > have:
        raise SettingsError(
            f"translating evaluation.batch_size={e.batch_size} sentences with "
            f"evaluation.beam={e.beam} needs {format_bytes(searched)} of memory or more "
            f"{there}; lower one of them"
        )
    if shown > have:
        raise SettingsError(
            f"the attention of evaluation.examples={e.examples} takes "
            f"{format_bytes(shown)} of memory or more {there}; lower it"
        )


def most_at_once(settings: Settings, machine: Machine) -> int:
    """Returns how many such trials fit a CPU's memory together, one at least."""
    if machine.memory is None:
        return machine.cores
    return max(1, machine.memory // assumed_memory(settings))


def remedy(settings: Settings, lacking: int, devices: int) -> str:
    """Names the least change with which training should fit that lacks so many bytes.

    They are lacking on each of its devices.
    """
    t = settings.training
    now = activation_memory(settings) // devices
    for parts in range(t.accumulate + 1, t.batch_size // devices + 1):
        # Other numbers of parts are refused when training starts.
        if t.batch_size % (devices * parts) == 0:
            training = dataclasses.replace(t, accumulate=parts)
            smaller = dataclasses.replace(settings, training=training)
            if now - activation_memory(smaller) // devices >= lacking:
                return f"training.accumulate={parts} should fit"
    return (
        "a smaller model should fit, or a smaller training.batch_size times "
        "training.sequence_length"
    )


def activation_memory(settings: Settings) -> int:
    """Estimates the bytes that the forward pass keeps for the backward pass.

    With S tokens a side of what is computed at once (batch_size · sequence_length /
    accumulate), T = sequence_length, D = d_model, Y = vocabulary, b = 4 bytes or 2 in
    bfloat16:

        b·S·N·(20·D + 4·d_ff + 3·(h + h_kv)·(d_k + d_v) + 7.5·h·T + 2·d_c)
        + 4·min(S·Y, 2²²)

    The term with T is of textbook attention, and 0 for rows of more than 256 tokens;
    the last is of the logits, in chunks. Differential heads have 2·d_k and 5·T in place
    of d_k and 2.5·T; talking heads 5·T and positions that count 12·T, for rows of any
    length. With remat one layer stands in the place of N, and N inputs, 2·D each,
    beside it. The factors are fitted to what XLA says of quick.py's step on a CPU (45
    MiB of temporaries), changed in one setting at a time: within 10 %. But on a CPU
    bfloat16 is computed in float32, and remat undone: there they need as much as
    without.
    """
    t = settings.training
    tokens = t.batch_size * t.sequence_length // t.accumulate
    stacks = _encoder(settings.model), _decoder(settings.model)
    layers = max(len(stack) for stack in stacks)
    layer = max(_floats_of_layer(block, t) for stack in stacks for block in stack)
    floats = layer + 2 * layers * settings.model.d_model if t.remat else layers * layer
    logits = min(tokens * settings.data.vocabulary_size, platforms.logits_at_once())
    return int(tokens * floats * (2 if t.precision == "bfloat16" else 4) + 4 * logits)


def _floats_of_layer(block, t):
    """Returns the numbers that a layer keeps of a token, on both sides of a model."""
    kept = block.positions.floats_of_pair or block.heads.floats_of_pair
    # Longer rows take the kernel blocks, which keeps no n² weights.
    is_short = t.sequence_length**2 <= SMALL
    is_quadratic = (
        block.positions.attend
        or block.heads.is_quadratic
        or block.residual.takes_scores
    )
    weights = kept * t.sequence_length if is_short or is_quadratic else 0
    of_head = block.width + block.d_v
    heads = (block.h + block.heads_of_keys) * of_head
    heads += block.h * weights * block.heads.maps
    return 20 * block.d_model + 4 * block.d_ff + 3 * heads + 2 * block.d_c


def format_bytes(count: int) -> str:
    """Returns "45 MiB", or "1.5 GiB" for 2³⁰ and more."""
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"


def program_without_corpus(settings: Settings) -> Program:
    """Returns the trial's program without its corpus, which may have longer sentences."""
    t = settings.training
    length = max(t.sequence_length, settings.evaluation.max_length)
    return program_of(settings, settings.data.vocabulary_size, length)


def with_one_layer(program: Program) -> Program:
    """Returns the program with one layer a stack, where all others are like the first."""
    if not is_uniform(program.model):
        return program
    return program._replace(model=dataclasses.replace(program.model, N=1))


# A sweep asks for the same few shapes at each of its points.
@functools.cache
def all_variable_shapes(program: Program) -> dict:
    """Returns the shapes of parameters and positions of all layers."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(functools.partial(initial_variables, program), key)
