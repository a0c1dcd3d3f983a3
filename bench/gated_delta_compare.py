#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the gated delta rule, forward and backward, against transformers' own (plain PyTorch), turn about.

  bench/gated_delta_compare.py OPS_BENCH [--rounds N] [--threads N] [--tokens N ...]

Run it with the python that tests/golden/setup_reference.sh prints; OPS_BENCH is the built program of that name. The layer is that of
Qwen3.5: 16 key heads, 32 value heads, 128 each, chunks of 64, bf16, one document. Each round times one call of transformers and then
ours, so that a slow minute of the machine meets both. Printed are seconds (best and median) and the ratio of the medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

import torch
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128


def make_transformers(tokens):
    """A function that runs forward and backward once."""
    rule = modeling_qwen3_5_moe.torch_chunk_gated_delta_rule
    rule = getattr(rule, "__wrapped__", rule)

    def leaf(*shape):
        return torch.randn(1, tokens, *shape).bfloat16().requires_grad_()
    inputs = [leaf(KEY_HEADS, DIM), leaf(KEY_HEADS, DIM), leaf(VALUE_HEADS, DIM)]
    inputs += [(torch.rand(1, tokens, VALUE_HEADS) * -0.1).requires_grad_(), torch.rand(1, tokens, VALUE_HEADS).requires_grad_()]
    grad = torch.ones(1, tokens, VALUE_HEADS, DIM, dtype=torch.bfloat16)

    def run():
        for x in inputs:
            x.grad = None
        out, _ = rule(*inputs, chunk_size=64, use_qk_l2norm_in_kernel=True)
        out.backward(grad)
    return run


def time_ours(program, tokens, threads):
    """Seconds of forward and backward, as the program measures them."""
    command = [program, "--benchmark_filter=^gated_delta_rule/auto/%d/" % tokens, "--benchmark_format=json", "--benchmark_min_time=0.5"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return json.loads(output)["benchmarks"][0]["real_time"] / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for tokens in arguments.tokens:
        torch.manual_seed(0)
        run, theirs, ours = make_transformers(tokens), [], []
        for _ in range(arguments.rounds):
            start = time.monotonic()
            run()
            theirs.append(time.monotonic() - start)
            ours.append(time_ours(arguments.program, tokens, arguments.threads))
        print("%d tokens, %d threads: transformers %.3f / %.3f s, ours %.3f / %.3f s (best / median), ratio %.1f" % (
            tokens, arguments.threads, min(theirs), statistics.median(theirs), min(ours), statistics.median(ours),
            statistics.median(theirs) / statistics.median(ours)), flush=True)


if __name__ == "__main__":
    main()
