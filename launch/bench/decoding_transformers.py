"""Translation with Hugging Face's transformers: generate() of a MarianMTModel, eager, in float32."""

import os

import numpy as np
import torch
import transformers

from experiments.tokens import BOS, EOS, PAD
from launch.bench import searches
from launch.bench.searches import Case
from launch.bench.timing import Adapter, Program

torch.set_num_threads(int(os.environ["NPROC"]))
transformers.logging.set_verbosity_error()


def search(case: Case) -> Program:
    model = transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=case.vocabulary, d_model=case.d_model, encoder_layers=case.N, decoder_layers=case.N,
        encoder_attention_heads=case.h, decoder_attention_heads=case.h, encoder_ffn_dim=case.d_ff,
        decoder_ffn_dim=case.d_ff, max_position_embeddings=case.pieces + 1, activation_function="relu",
        scale_embedding=True, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS,
        forced_eos_token_id=EOS)).eval()
    model.load_state_dict({name: torch.tensor(w) for name, w in _state(case).items()})
    source = torch.tensor(searches.sources(case), dtype=torch.long)
    seen = torch.ones_like(source)

    def run():
        with torch.no_grad():
            return model.generate(source, attention_mask=seen, num_beams=case.beam, do_sample=False,
                                  max_new_tokens=case.pieces, length_penalty=searches.ALPHA)[:, 1:]

    return Program(run, lambda: {"pieces": run().numpy().astype(np.int32)})


def _state(case):
    """The weights by Marian's names; its attention has biases, here 0."""
    w = searches.weights(case)
    found = {"final_logits_bias": np.zeros((1, case.vocabulary), np.float32)}
    for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        found[f"{name}.weight"] = w["embedding"]
    for side in ("encoder", "decoder"):
        found[f"model.{side}.embed_positions.weight"] = searches.positions(case)
        for i in range(case.N):
            found |= {f"model.{side}.layers.{i}.{name}": array for name, array in _layer(w[f"{side}_{i}"]).items()}
    return found


def _layer(w):
    found = {}
    for ours, theirs in (("self", "self_attn"), ("cross", "encoder_attn")):
        own = w.get(f"{ours}_attention", {})
        for short, array in own.items():
            name = dict(w_q="q_proj", w_k="k_proj", w_v="v_proj", w_o="out_proj")[short]
            matrix = searches.out_of(array) if short == "w_o" else searches.into(array)
            found |= {f"{theirs}.{name}.weight": matrix, f"{theirs}.{name}.bias": np.zeros(len(matrix), np.float32)}
    norms = dict(self_norm="self_attn_layer_norm", cross_norm="encoder_attn_layer_norm",
                 feed_forward_norm="final_layer_norm")
    for ours, theirs in norms.items():
        if ours in w:
            found |= {f"{theirs}.weight": w[ours]["norm"]["scale"], f"{theirs}.bias": w[ours]["norm"]["bias"]}
    for ours, theirs in (("w_1", "fc1"), ("w_2", "fc2")):
        found[f"{theirs}.weight"] = w["feed_forward"][ours]["kernel"].T
        found[f"{theirs}.bias"] = w["feed_forward"][ours]["bias"]
    return found


PEERS = {"transformers": Adapter(search)}
