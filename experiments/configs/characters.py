"""A language model of characters: how many bits it needs for each.

    python -m launch.train --config=experiments/configs/characters.py --workdir=runs/characters
    python -m launch.train --config=experiments/configs/characters.py:shakespeare \
      --config.data.directory=DIR --workdir=runs/shakespeare
    python -m launch.sweep --config=experiments/configs/characters.py --sweep=positions \
      --seeds=3 --workdir=runs/positions

Bits per character are of the text, whatever its tokens are: models of words, of pieces and of
characters have one scale. The first trains on German CLDR phrases. The others read text that
is yours to bring, as one stream in which ↵ ends a line, in pieces of 256 characters, each
without what is before it:

shakespeare: `input.txt` of github.com/karpathy/char-rnn, data/tinyshakespeare, 1,115,394
bytes. nanoGPT's 10.7 million parameters reach 1.4697 nats a character, 2.12 bits, on the last
tenth of it, in pieces of 256 too. Here 2,000 lines are for validation, and the last 2,000 for
the test.

ptb: `ptb.train.txt`, `ptb.valid.txt` and `ptb.test.txt`, the Penn Treebank as Mikolov prepared
it (their MD5 sums begin with f26c4b92, aa0affc0 and 80168b15). Published, with all that is
before a character: AWD-LSTM 1.175 bits, Mogrifier LSTM 1.120, RLSTM 1.096. Its text may not be
passed on.

Four layers of width 128, 0.8 million parameters.
"""

from attn import POSITIONS
from experiments.configs import quick
from experiments.settings import override

FILES = {
    "shakespeare": dict(
        train="input.txt", validation="input.txt", test="input.txt", heldout=2000
    ),
    "ptb": dict(train="ptb.train.txt", validation="ptb.valid.txt", test="ptb.test.txt"),
}


def get_config(text="cldr"):
    known = ("cldr", *FILES)
    if text not in known:
        raise ValueError(f"unknown text {text!r}; known: {', '.join(known)}")
    is_stream = text in FILES
    length = 256 if is_stream else 128
    # Through `override`, because another kind and corpus have other settings.
    config = override(
        quick.get_config(),
        {
            "model.kind": "language",
            "data.corpus": "text" if is_stream else text,
            "data.vocabulary": "characters",
            "data.vocabulary_size": 400,
            "data.max_length": length,
        },
    )
    if is_stream:
        config.data.update(directory=text, lines="stream", **FILES[text])
    config.model.update(
        N=4,
        d_model=128,
        d_ff=512,
        h=4,
        d_k=32,
        d_v=32,
        P_drop=0.1,
        norm="pre",
        positions="rotary",
    )
    config.training.update(
        steps=3000,
        optimizer="adamw(weight_decay=0.1)",
        schedule="cosine(warmup=200)",
        learning_rate=0.002,
        clip=1.0,
        eps_ls=0.0,
        batch_size=32,
        sequence_length=length,
        evaluate_every=500,
        save_every=500,
    )
    config.evaluation.max_length = length
    return config


def sweep_positions():
    for positions in POSITIONS:
        yield {"model.positions": positions}


def sweep_mixing():
    """What mixes positions; recurrences know the order by themselves."""
    for mixer in ("attention", "restricted(radius=32)"):
        yield {"model.decoder_mixing": mixer}
    for mixer in ("gated_deltanet", "mamba2", "recurrence(cell=lstm)"):
        yield {"model.decoder_mixing": mixer, "model.positions": "none"}
