# SPDX-License-Identifier: Apache-2.0
"""Greedy continuations by transformers' own generate(): fp32, one prompt at a time, key-value cache."""
import torch

NEAR_TIE = 1e-4  # two logits that are nearer may change places in another right program


def continue_greedily(model, input_ids, max_new_tokens, **settings):
    """The new ids, and for each of them how far the best logit lay above the second one."""
    out = model.generate(torch.tensor([input_ids]), attention_mask=torch.ones(1, len(input_ids), dtype=torch.int64),
                         max_new_tokens=max_new_tokens, do_sample=False, use_cache=True, pad_token_id=0,
                         return_dict_in_generate=True, output_logits=True, **settings)
    gaps = []
    for logits in out.logits:
        best, second = logits[0].float().topk(2).values.tolist()
        gaps.append(best - second)
    return out.sequences[0, len(input_ids):].tolist(), gaps
