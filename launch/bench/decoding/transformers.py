"""Translates with Hugging Face's transformers.

That is generate() of a MarianMTModel, eager, in float32.
"""

import numpy as np
import torch
import transformers

from experiments.data.vocabulary import BOS, EOS, PAD
from launch.bench.decoding import case as searches
from launch.bench.decoding.case import Case
from launch.bench.harness.program import Adapter, Program
from launch.bench.harness.torch_device import DEVICE, growth, wait

# Its warnings would be printed between the parent's tables.
transformers.logging.set_verbosity_error()

PROJECTIONS = {"w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_o": "out_proj"}
NORMS = {
    "self_norm": "self_attn_layer_norm",
    "cross_norm": "encoder_attn_layer_norm",
    "feed_forward_norm": "final_layer_norm",
}


def search(case: Case) -> Program:
    """Builds the model with our weights."""
    model = transformers.MarianMTModel(_config(case)).eval()
    state = {name: torch.tensor(w) for name, w in _state(case).items()}
    model.load_state_dict(state)
    model.to(DEVICE)
    source = torch.tensor(searches.sources(case), dtype=torch.long, device=DEVICE)
    real = torch.ones_like(source)

    def run():
        with torch.no_grad():
            # The first token is the one that the decoder starts from.
            return model.generate(
                source,
                attention_mask=real,
                num_beams=case.beam,
                do_sample=False,
                max_new_tokens=case.tokens,
                length_penalty=searches.ALPHA,
            )[:, 1:]

    def sample():
        return {"tokens": run().cpu().numpy().astype(np.int32)}

    return Program(run, sample, growth=growth, wait=wait)


def _config(case):
    return transformers.MarianConfig(
        vocab_size=case.vocabulary,
        d_model=case.d_model,
        encoder_layers=case.N,
        decoder_layers=case.N,
        encoder_attention_heads=case.h,
        decoder_attention_heads=case.h,
        encoder_ffn_dim=case.d_ff,
        decoder_ffn_dim=case.d_ff,
        max_position_embeddings=case.tokens + 1,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        # attn's searches force the end mark at the limit too.
        forced_eos_token_id=EOS,
    )


def _state(case):
    """Returns the weights by Marian's names; its attention has biases, here 0."""
    w = searches.weights(case)
    state = {"final_logits_bias": np.zeros((1, case.vocabulary), np.float32)}
    shared = ("model.shared", "lm_head")
    embeddings = ("model.encoder.embed_tokens", "model.decoder.embed_tokens")
    # The paper's model has one matrix for both embeddings and the output.
    for name in (*shared, *embeddings):
        state[f"{name}.weight"] = w["embedding"]
    for side in ("encoder", "decoder"):
        state[f"model.{side}.embed_positions.weight"] = searches.positions(case)
        for i in range(case.N):
            for name, array in _layer(w[f"{side}_{i}"]).items():
                state[f"model.{side}.layers.{i}.{name}"] = array
    return state


def _layer(w):
    state = _attention("self_attn", w["self_attention"])
    if "cross_attention" in w:
        state |= _attention("encoder_attn", w["cross_attention"])
    for ours, theirs in NORMS.items():
        if ours in w:
            state[f"{theirs}.weight"] = w[ours]["norm"]["scale"]
            state[f"{theirs}.bias"] = w[ours]["norm"]["bias"]
    for ours, theirs in (("w_1", "fc1"), ("w_2", "fc2")):
        state[f"{theirs}.weight"] = w["feed_forward"][ours]["kernel"].T
        state[f"{theirs}.bias"] = w["feed_forward"][ours]["bias"]
    return state


def _attention(prefix, w):
    state = {}
    for ours, array in w.items():
        turned = searches.out_of_heads if ours == "w_o" else searches.into_heads
        matrix = turned(array)
        name = f"{prefix}.{PROJECTIONS[ours]}"
        state[f"{name}.weight"] = matrix
        state[f"{name}.bias"] = np.zeros(len(matrix), np.float32)
    return state


ADAPTERS = {"transformers": Adapter(search)}
