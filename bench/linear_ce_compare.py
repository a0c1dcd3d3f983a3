#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the language-model head with its cross-entropy, forward and backward, against transformers, turn about.

  bench/linear_ce_compare.py OPS_BENCH [--rounds N] [--threads N] [--hidden N ...] [--vocab N ...]

Run it with the python that tests/golden/setup_reference.sh prints; OPS_BENCH is the built program of that name. Theirs is what a causal
model of transformers does in bf16: logits by nn.Linear, then ForCausalLMLoss, which takes them to fp32; backward to the hidden states and
the weight. Ours is the operator linear_cross_entropy. 2048 tokens, bf16. Each round is a process of theirs and one of ours, so that a
slow minute of the machine meets both. Printed for each size are seconds (best, median, worst of the rounds), by the clock and as time
of the processor, and the peak of resident memory beyond weight, hidden states and the weight's gradient.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TOKENS = 2048


def peak_mib():
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    sys.exit("linear_ce_compare.py: /proc/self/status has no line VmHWM")


def run_peer(hidden, vocab, threads):
    """One line of JSON: the faster of two steps after one to warm up."""
    import torch
    from transformers.loss.loss_utils import ForCausalLMLoss
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, vocab, bias=False, dtype=torch.bfloat16)
    x = torch.randn(1, TOKENS, hidden).bfloat16().requires_grad_()
    labels = torch.randint(0, vocab, (1, TOKENS))

    def step():
        loss = ForCausalLMLoss(head(x), labels, vocab)
        loss.backward()
        x.grad = head.weight.grad = None
    base = peak_mib()
    steps = []
    for _ in range(3):
        start, cpu = time.monotonic(), time.process_time()
        step()
        steps.append((time.monotonic() - start, time.process_time() - cpu))
    gradient = hidden * vocab * 2 / 2**20
    print(json.dumps({"wall": min(s for s, _ in steps[1:]), "cpu": min(c for _, c in steps[1:]), "mib": peak_mib() - base - gradient}))


def time_peer(hidden, vocab, threads):
    command = [sys.executable, os.path.abspath(__file__), "--peer", str(hidden), str(vocab), "--threads", str(threads)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "OMP_WAIT_POLICY": "passive"}).stdout
    return json.loads(output.splitlines()[-1])


def time_ours(program, hidden, vocab, threads):
    command = [program, "--benchmark_filter=^linear_cross_entropy/auto/%d/%d/" % (vocab, hidden), "--benchmark_format=json",
               "--benchmark_repetitions=2", "--benchmark_min_time=0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    rows = [row for row in json.loads(output)["benchmarks"] if row["run_type"] == "iteration"]
    return {"wall": min(row["real_time"] for row in rows) / 1e3, "cpu": min(row["cpu_time"] for row in rows) / 1e3,
            "mib": max(row["MiB"] for row in rows)}


def of(rounds, key):
    values = [r[key] for r in rounds]
    return "%.2f / %.2f / %.2f" % (min(values), statistics.median(values), max(values)), statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--vocab", type=int, nargs="+", default=[151936])
    parser.add_argument("--peer", type=int, nargs=2, metavar=("HIDDEN", "VOCAB"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        run_peer(*arguments.peer, arguments.threads)
        return
    if not arguments.program:
        parser.error("OPS_BENCH is missing")
    print("seconds are best / median / worst of %d rounds, %d threads\n" % (arguments.rounds, arguments.threads))
    print("| vocabulary | H | transformers, s | ours, s | ratio | transformers, CPU s | ours, CPU s | ratio | memory, MiB | of theirs |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for vocab in arguments.vocab:
        for hidden in arguments.hidden:
            theirs, ours = [], []
            for _ in range(arguments.rounds):
                theirs.append(time_peer(hidden, vocab, arguments.threads))
                ours.append(time_ours(arguments.program, hidden, vocab, arguments.threads))
            cells = [str(vocab), str(hidden)]
            for key in ("wall", "cpu"):
                (their_text, their_median), (our_text, our_median) = of(theirs, key), of(ours, key)
                cells += [their_text, our_text, "%.2f" % (their_median / our_median)]
            peaks = statistics.median(r["mib"] for r in theirs), statistics.median(r["mib"] for r in ours)
            cells += ["%.0f, %.0f" % peaks, "%.1f%%" % (100 * peaks[1] / peaks[0])]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
