"""Descriptions of models: what a part or a layer may change, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn import (
    RESIDUALS,
    Context,
    Differential,
    Heads,
    LanguageModel,
    Learned,
    LinearAttention,
    Mask,
    NoPositions,
    Randomised,
    Recurrent,
    Relative,
    Residual,
    Rotary,
    ScoreResidual,
    SelfAttention,
    Sinusoidal,
    TalkingHeads,
    Transformer,
    ValueResidual,
    attention,
    config,
)
from attn.config import COMBINATIONS, GATES
from attn.heads.exclusive import Exclusive
from attn.nn.layers import ACTIVATIONS, EMBEDDINGS
from attn.nn.norms import Pre
from attn.scores import SCORES
from tests.attn.nn.modules import CAUSAL, apply, random_variables, sentences

SIZES = dict(N=2, d_model=8, d_ff=11, h=2, d_k=6, d_v=4)
NONE = RESIDUALS["none"]()


class Twice(Heads):
    """Twice what attention gives."""

    interact = False

    def attend(self, params, q, k, v, ctx, **arguments):
        return 2 * attention(q, k, v, **arguments)


class Sum(Residual):
    """Values as they are."""

    def values(self, params, v, ctx):
        return v, ctx


class SumOfScores(Residual):
    """Scores as they are."""

    def scores(self, params, s, ctx):
        return s, ctx


TOKENS = np.array([[3, 1, 4, 1, 5]])


def shapes(**options):
    """Returns the shapes of a Transformer's parameters."""
    model = Transformer(config.Transformer(**SIZES | options), 7, 5)
    arguments = sentences(TOKENS, TOKENS)
    variables = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    return jax.tree.map(lambda x: x.shape, variables["params"])


def test_a_layer_with_positions_of_its_own_leaves_the_stacks_table():
    for layer in ("layer_1", "layer_2"):
        changes = {layer: {"positions": Rotary()}}
        own = config.LanguageModel(**SIZES, positions=Sinusoidal(), decoder=changes)
        own.check()
        assert own.tables() == {"target_positions": Sinusoidal()}


def test_an_option_of_the_model_is_that_of_all_attentions():
    params = shapes(h=4)
    for layer in ("encoder_0", "encoder_1", "decoder_0", "decoder_1"):
        assert params[layer]["self_attention"]["w_q"] == (8, 4, 6)
    assert params["decoder_0"]["cross_attention"]["w_q"] == (8, 4, 6)


def test_parts_and_layers_have_options_of_their_own():
    params = shapes(
        encoder={"N": 3, "d_ff": 5, "layer_2": {"score": "additive", "d_ff": 9}},
        decoder={"N": 1, "h": 4},
        cross={"h": 1, "d_v": 3},
    )
    names = {name for name in params if "coder_" in name}
    assert names == {"encoder_0", "encoder_1", "encoder_2", "decoder_0"}
    widths = [params[f"encoder_{i}"]["feed_forward"]["w_1"]["bias"] for i in range(3)]
    assert widths == [(5,), (9,), (5,)]
    has_score = ["score" in params[f"encoder_{i}"]["self_attention"] for i in range(3)]
    assert has_score == [False, True, False]
    decoder = params["decoder_0"]
    assert decoder["self_attention"]["w_q"] == (8, 4, 6)
    assert decoder["feed_forward"]["w_1"]["bias"] == (11,)
    assert decoder["cross_attention"]["w_q"] == (8, 1, 6)
    assert decoder["cross_attention"]["w_v"] == (8, 1, 3)


def test_a_part_that_says_what_the_model_says_changes_nothing():
    plain = shapes(h=4)
    same = shapes(
        encoder={"h": 4}, decoder={"layer_1": {"h": 4}, "h": 4}, cross={"h": 4}
    )
    assert same == plain


def test_a_layer_with_its_own_score_computes_with_it():
    """Its arrays reach the output, and a model without them gives another."""
    of = config.LanguageModel(**SIZES, decoder={"layer_2": {"score": "bilinear"}})
    model = LanguageModel(of, 7, 5)
    variables = random_variables(model, jnp.asarray(TOKENS), CAUSAL)
    own = variables["params"]["decoder_1"]["self_attention"]["score"]["w"]
    assert own.shape == (2, 6, 6)

    def total(variables):
        return apply(model, variables, jnp.asarray(TOKENS), CAUSAL)[0, :, 0].sum()

    gradient = jax.grad(total)(variables)["params"]["decoder_1"]
    assert jnp.abs(gradient["self_attention"]["score"]["w"]).max() > 1e-4


def test_a_scan_refuses_layers_that_differ_and_takes_stacks_that_do():
    arguments = sentences(TOKENS, TOKENS)
    of = config.Transformer(**SIZES, encoder={"N": 3}, decoder={"h": 4})
    scanned = Transformer(of, 7, 5, scan=True)
    variables = random_variables(scanned, *arguments)
    expected = apply(scanned.clone(scan=False), variables, *arguments)
    actual = apply(scanned, variables, *arguments)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for wrong, message in (
        (
            dict(decoder={"layer_1": {"h": 4}}),
            "decoder has layers with options of their",
        ),
        (dict(selection="argmax"), "selection=argmax makes the last layer differ"),
    ):
        of = config.Transformer(**SIZES, **wrong)
        with pytest.raises(ValueError, match=f"{message}.*scan must be False"):
            Transformer(of, 7, 5, scan=True).init(jax.random.key(0), *arguments)


def test_each_stack_has_the_table_of_its_positions():
    of = config.Transformer(**SIZES, encoder={"positions": Learned()})
    tables = of.tables()
    assert tables["source_positions"] == Learned()
    assert tables["target_positions"] == Sinusoidal()
    without = of.without_tables()
    assert without.positions == NoPositions()
    assert without.encoder["positions"] == NoPositions()
    inside = config.Transformer(**SIZES, positions=Rotary())
    assert inside.without_tables() == inside


def test_attention_to_the_source_has_no_positions_of_its_own():
    of = config.Transformer(**SIZES, positions=Relative(2))
    assert {x.positions for x in of.cross_attentions()} == {NoPositions()}
    assert "relative" in shapes(positions=Relative(2))["decoder_0"]["self_attention"]
    assert (
        "relative" not in shapes(positions=Relative(2))["decoder_0"]["cross_attention"]
    )


def test_descriptions_are_values():
    changed = config.Transformer(decoder={"layer_1": {"h": 4}})
    assert changed == config.Transformer(decoder={"layer_1": {"h": 4}})
    assert hash(changed) == hash(config.Transformer(decoder={"layer_1": {"h": 4}}))
    assert changed != config.Transformer()
    assert config.Transformer().scale == 512**0.5
    assert config.Transformer(embedding_scale=1.0).scale == 1.0


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("embeddings", EMBEDDINGS),
        ("head_activation", ACTIVATIONS),
        ("score", SCORES),
        ("gate", GATES),
        ("combine", COMBINATIONS),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name, known):
    message = f"{name}='nope' must be one of {', '.join(known)}"
    with pytest.raises(ValueError, match=message):
        config.Transformer(**{name: "nope"}).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(d_k=5, positions=Rotary()), "d_k=5 must be even: rotary positions turn"),
        (dict(decoder_mixing=Recurrent("rnn")), "unknown cell 'rnn'; known: gru"),
        (dict(heads=Differential(1.0)), "lambda_init=1.0 must be at least 0 and below"),
        (dict(h=0), "h=0 must be at least 1 and at most 4096"),
        (dict(heads=TalkingHeads(), h_kv=1), "need separate keys and values for every"),
        (
            dict(cross={"heads": TalkingHeads()}, selection="argmax"),
            r"heads=TalkingHeads\(\) must be separate",
        ),
        (dict(encoder={"width": 3}), "encoder.width is no option of the encoder"),
        (dict(cross={"d_ff": 3}), "cross.d_ff is no option of the cross"),
        (dict(encoder={"N": 0}), "encoder.N=0 must be at least 1"),
        (dict(cross={"N": 3}), "cross.N is no option of the cross"),
        (dict(encoder={"d_model": 3}), "encoder.d_model is no option of the encoder"),
        (
            dict(N=2, decoder={"layer_3": {"h": 1}}),
            "decoder.layer_3: the decoder has 2",
        ),
        (dict(encoder={"layer_1": {"N": 1}}), "encoder.N is no option of the encoder"),
        (
            dict(encoder={"layer_1": {"positions": Learned()}}),
            "fill the table of the whole stack, and not one layer",
        ),
        (
            dict(encoder={"layer_2": {"positions": Randomised()}}),
            "fill the table of the whole stack, and not one layer",
        ),
        (
            dict(decoder={"layer_2": {"positions": NoPositions()}}),
            r"decoder.layer_2.positions=NoPositions\(\) changes nothing",
        ),
        (
            dict(cross={"heads": Exclusive()}),
            r"cross.heads=Exclusive\(\) read a token's own text",
        ),
        (
            dict(heads=Twice(), d_c=4),
            r"heads=Twice\(\) read keys or values, and a step",
        ),
        (dict(residual=Sum(), d_c=4), r"residual=Sum\(\) read keys or values, and a"),
        (
            dict(residual=SumOfScores(), heads=Twice()),
            "both make weights of scores",
        ),
        (
            dict(decoder={"h": 3, "h_kv": 2}),
            "3 heads of queries cannot share 2 of keys",
        ),
        (
            dict(residual=ValueResidual(), decoder={"layer_2": {"d_v": 3}}),
            "the decoder's layers pass arrays from one to the next .* the same heads",
        ),
        (
            dict(
                residual=ScoreResidual(), encoder={"layer_1": {"mixing": Recurrent()}}
            ),
            "the encoder's layers pass arrays from one to the next",
        ),
        (
            dict(residual=ValueResidual(), encoder={"layer_1": {"residual": NONE}}),
            "the encoder's layers pass arrays from one to the next",
        ),
        (
            dict(
                positions=Relative(),
                encoder_mixing=Recurrent(),
                decoder_mixing=Recurrent(),
            ),
            "is of self-attention, and there is none: encoder_mixing=Recurrent",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config.Transformer(**options).check()


@pytest.mark.parametrize(
    "option",
    [
        dict(gate="head"),
        dict(h_kv=1),
        dict(heads=TalkingHeads()),
        dict(score="additive"),
        dict(normaliser="sigmoid"),
        dict(biases=True),
    ],
)
def test_what_no_layer_reads_is_refused(option):
    """With the same parameters it would be another row of a table."""
    linear = dict(decoder_mixing=LinearAttention(), positions=NoPositions())
    config.LanguageModel(**SIZES, **linear).check()
    with pytest.raises(ValueError, match="is of self-attention, and there is none"):
        config.LanguageModel(**SIZES, **linear, **option).check()
    with pytest.raises(ValueError, match="is of self-attention, and there is none"):
        config.LanguageModel(**SIZES, **linear, decoder={"layer_2": option}).check()
    # One layer that attends is enough.
    one = {"layer_1": {"mixing": SelfAttention()}}
    config.LanguageModel(**SIZES, **linear, **option, decoder=one).check()


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("positions", "Positions"),
        ("heads", "Heads"),
        ("residual", "Residual"),
        ("norm", "Norm"),
        ("feed_forward", "FeedForward"),
        ("encoder_mixing", "Mixer"),
    ],
)
def test_a_name_in_place_of_a_value_is_refused(name, base):
    of = config.Transformer()
    # As without the tests' checks of types, which would refuse it here.
    object.__setattr__(of, name, "rotary")
    with pytest.raises(ValueError, match=f"{name}='rotary' must be a {base}, such as"):
        config.check_fields(of)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(h="8"), "h='8' must be a whole number"),
        (dict(h=True), "h=True must be a whole number"),
        (dict(h=2.5), "h=2.5 must be a whole number"),
        (dict(embedding_scale="x"), "embedding_scale='x' must be a number"),
        (dict(h=0), "h=0 must be at least 1 and at most 4096"),
        (dict(gate="heads"), "gate='heads' must be one of none, head, element"),
    ],
)
def test_an_option_of_another_kind_is_named(options, message):
    description = config.Transformer()
    for name, value in options.items():
        # Past the types that the tests check when it is made.
        object.__setattr__(description, name, value)
    with pytest.raises(ValueError, match=re.escape(message)):
        description.check()


def test_a_stack_ends_in_the_norm_of_its_own_layers():
    sizes = dict(N=1, d_model=8, d_ff=8, h=2, d_k=4, d_v=4)
    description = config.Transformer(**sizes, encoder={"norm": Pre(kind="rms")})
    model = Transformer(description, 11, 5)
    tokens = jnp.ones((1, 3), int)
    both = Context(), Context(Mask.causal())
    variables = model.init(jax.random.key(0), tokens, tokens, *both)
    params = variables["params"]
    assert params["encoder_norm"].keys() == {"scale"} and "decoder_norm" not in params
    memory = model.apply(variables, tokens, Context(), method="encode")
    np.testing.assert_allclose((memory**2).mean(-1), 1, rtol=1e-4)
