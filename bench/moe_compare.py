#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times one MoE layer, forward and backward, bf16, routing given, against transformers' grouped_mm experts, turn about.

  bench/moe_compare.py MOE_BENCH [--rounds N] [--threads N] [--shapes NAME ...]

Run it with the python that tests/golden/setup_reference.sh prints; MOE_BENCH is the built program of that name. Each round times one step
of transformers and then one of each of ours, in another process that waits meanwhile, so that a slow minute of the machine meets all:
`packed`, the experts that train in bf16, `mm`, a loop of at::mm over the experts in C++ with what belongs between the products, and
`products`, the six products of at::mm alone, for experts that all have the mean number of rows. Both sides make new gradients in every step.
Printed are medians with the least and the most, the ratios of the medians to ours (of the time, and of the CPU time, which says more on a
busy machine), and what part of the machine's bf16 rate ours comes to and how many times the time that weights and gradients take through
memory, both in CPU time, as moe_bench measures them before each of its steps.
"""
import argparse
import os
import statistics
import subprocess
import time

os.environ["OMP_WAIT_POLICY"] = "passive"  # of both sides: threads that wait would be in the CPU time

import torch  # noqa: E402
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

TOP_K = 8
CANDIDATES = ("products", "mm", "packed")
SHAPES = {  # experts, hidden, width, tokens
    "t512": (128, 2048, 768, 512),
    "t2048": (128, 2048, 768, 2048),
    "t8192": (128, 2048, 768, 8192),
    "e256": (256, 2048, 512, 2048),
    "bench": (64, 512, 192, 2048),
}


def make_transformers(experts, hidden, width, tokens):
    """A function that runs forward and backward once and returns seconds and CPU seconds."""
    config = Qwen3MoeConfig(
        hidden_size=hidden, intermediate_size=hidden, moe_intermediate_size=width, num_hidden_layers=1, num_attention_heads=hidden // 128,
        num_key_value_heads=1, head_dim=128, num_experts=experts, num_experts_per_tok=TOP_K, vocab_size=128, decoder_sparse_step=1)
    model = Qwen3MoeForCausalLM._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation="grouped_mm")
    layer = model.model.layers[0].mlp.experts
    x = torch.randn(tokens, hidden).bfloat16().requires_grad_()
    grad = torch.randn(tokens, hidden).bfloat16()
    weights = torch.softmax(torch.randn(tokens, TOP_K), -1).bfloat16().requires_grad_()

    def run():
        ids = torch.rand(tokens, experts).topk(TOP_K, -1).indices
        start, cpu_start = time.monotonic(), time.process_time()
        layer(x, ids, weights).backward(grad)
        seconds = time.monotonic() - start, time.process_time() - cpu_start
        for tensor in (x, weights, *layer.parameters()):
            tensor.grad = None
        return seconds
    run()  # memory is touched once before it counts
    return run


class Ours:
    """moe_bench, waiting for its turns."""

    def __init__(self, program, shape, threads):
        experts, hidden, width, tokens = shape
        command = [program, *map(str, (tokens, hidden, width, experts, TOP_K)), "--ranks", "1", "--threads", str(threads), "--skew", "0"]
        command += ["--turns", "--rounds", "3", "--only", ",".join(CANDIDATES)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self.process.stdout.readline() != "ready\n":
            if self.process.poll() is not None:
                raise SystemExit("%s ended with exit code %d" % (program, self.process.returncode))

    def run(self):
        """{name: (seconds, CPU seconds, GFLOP/s of the machine, seconds of the memory)}"""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        result = {}
        for _ in CANDIDATES:
            name, *numbers = self.process.stdout.readline().split()
            result[name] = [float(number) for number in numbers]
        return result

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def spread(turns):
    seconds = [turn[0] for turn in turns]
    return "%.1f (%.1f to %.1f)" % (statistics.median(seconds) * 1e3, min(seconds) * 1e3, max(seconds) * 1e3)


def median(turns, what):
    return statistics.median(turn[what] for turn in turns)


def compare(name, arguments):
    experts, hidden, width, tokens = SHAPES[name]
    run_theirs = make_transformers(*SHAPES[name])
    program = Ours(arguments.program, SHAPES[name], arguments.threads)
    turns = {kind: [] for kind in ("transformers", *CANDIDATES)}
    for _ in range(arguments.rounds):
        turns["transformers"].append(run_theirs())
        for kind, turn in program.run().items():
            turns[kind].append(turn)
    program.close()
    ours = turns.pop("packed")
    flop, thread_seconds = 18e-9 * tokens * TOP_K * hidden * width, median(ours, 1) / arguments.threads
    cells = ["%d experts, %d x %d, %d tokens" % (experts, hidden, width, tokens), spread(ours)]
    cells += ["%s, %.1fx, CPU %.1fx" % (spread(peer), median(peer, 0) / median(ours, 0), median(peer, 1) / median(ours, 1))
              for peer in turns.values()]
    cells += ["%.0f" % (flop / median(ours, 0)), "%.0f%%" % (100 * flop / thread_seconds / median(ours, 2)), "%.2f" % (thread_seconds / median(ours, 3))]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print("| layer | ours, ms | transformers | products of at::mm alone | loop of at::mm | GFLOP/s | of the roofline | times the memory's time |\n"
          "|---|---|---|---|---|---|---|---|")
    for name in arguments.shapes:
        compare(name, arguments)


if __name__ == "__main__":
    main()
