#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes balance/ of some goldens: six SGD steps with the routers' balance loss over all tokens of a step (README.md).

  make_balance_goldens.py [NAME ...]      all of them, or the named ones

Run it with the python that setup_reference.sh prints. All samples of a step are in one graph, and transformers' own
load_balancing_loss_func gets the router logits of all of them.
"""
import json
import os
import shutil
import sys
import tempfile

import hf_ref
import make_goldens
import torch
import transformers
from safetensors.torch import save_file
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

NAMES = ["tiny_s0", "no_norm_topk", "dense_first", "qwen3_5_text"]
COEFFICIENT = 0.2
LEARNING_RATE = 0.05
MAX_NORM = 1.0


def step_losses(model, samples):
    targets = sum(sum(label != -100 for label in sample["labels"][1:]) for sample in samples)
    loss, logits = 0.0, []
    for sample in samples:
        ids, labels = torch.tensor([sample["input_ids"]]), torch.tensor(sample["labels"][1:])
        out = model(input_ids=ids, output_router_logits=True)
        logits += out.router_logits
        logprobs = torch.log_softmax(out.logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None])[:, 0]
        loss = loss - (logprobs * (labels != -100)).sum() / targets
    config = model.config
    return loss, load_balancing_loss_func(tuple(logits), config.num_experts, config.num_experts_per_tok)


def make(name):
    golden = make_goldens.folder_of(name)
    out = os.path.join(golden, "balance")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    samples = make_goldens.NUM_SAMPLES[make_goldens.family_of(make_goldens.GOLDENS[name])]
    with tempfile.TemporaryDirectory() as folder:
        make_goldens.write_model(golden, folder)
        model = hf_ref.load(folder).train()
        parameters = dict(model.named_parameters())
        optimizer = torch.optim.SGD(parameters.values(), lr=LEARNING_RATE)
        trace = []
        for step, row in enumerate(make_goldens.read_jsonl(os.path.join(golden, "batches.jsonl")), 1):
            loss, balance = step_losses(model, row["samples"])
            (loss + COEFFICIENT * balance).backward()
            if step == 1:
                save(folder, out, "grads_step1.safetensors", {k: p.grad for k, p in parameters.items()}, samples)
            norm = torch.nn.utils.clip_grad_norm_(parameters.values(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            trace.append({key: make_goldens.rounded(value.item()) for key, value in
                          (("loss", loss), ("balance_loss", balance), ("grad_norm", norm))})
        save(folder, out, "final.safetensors", parameters, samples)
        make_goldens.write_jsonl([dict(step=i, **row) for i, row in enumerate(trace, 1)],
                                 os.path.join(out, "trace.jsonl"))
    print(name, json.dumps(trace[0]), json.dumps(trace[-1]), flush=True)


def save(folder, out, name, tensors, samples):
    whole = os.path.join(folder, "whole.safetensors")
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, whole)
    make_goldens.summarise(whole, os.path.join(out, name), samples)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or NAMES:
        make(name)


if __name__ == "__main__":
    main()
