#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No page faults in steady state: once a run has seen its batches, steps use the memory that the process has.

    tests/memory/memory_test.py EXPERTMESH [TEXT ...]

Page faults are counted without huge pages, so that memory which is new each step shows as thousands of them.
"""
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import product  # noqa: E402
from product import OK, Failure  # noqa: E402
from suite import Suite  # noqa: E402

VOCAB, HIDDEN, LAYERS = 24000, 64, 2
ROWS = 12  # an epoch: six steps of two
WARM_STEPS, STEPS = 18, 30
PAGE = 4096
# The gradient of the embedding is a temporary of every micro-batch.
LARGEST_TEMPORARY_PAGES = VOCAB * HIDDEN * 4 // PAGE
MOST_FAULTS_A_STEP = 300
PR_SET_THP_DISABLE = 41


def path(*parts):
    return os.path.join(EXPERTMESH.folder, *parts)


def write_rows(name, lengths):
    draw = random.Random(1)
    with open(path(name + ".jsonl"), "w", encoding="utf-8") as file:
        for length in lengths:
            ids = [draw.randrange(VOCAB) for _ in range(length)]
            file.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")
    with open(path(name + ".yaml"), "w", encoding="utf-8") as file:
        json.dump({"rows": {"path": path(name + ".jsonl"), "source": "local", "converter": "tokenized"}}, file)


def make_model():
    with open(path("config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": VOCAB, "hidden_size": HIDDEN,
                   "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64,
                   "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1,
                   "mlp_only_layers": [], "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                   "rope_scaling": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_bias": False}, file)
    EXPERTMESH(["init", "--config", "config.json", "--out", "model"]).expect_code(OK)


def count_faults(name, rows, ranks, overrides):
    """Minor faults of each step from the second on, read when the step's line is there."""
    arguments = [EXPERTMESH.path, "sft", "model=model", "train_dataset=%s.yaml" % rows, "output_dir=" + name, "shuffle=false",
                 "max_steps=%d" % STEPS, "cutoff_len=256", "micro_batch_size=%d" % (2 // ranks), "global_batch_size=2", "--ranks", str(ranks),
                 "--threads-per-rank", "1", *overrides]
    libc = ctypes.CDLL(None, use_errno=True)
    process = subprocess.Popen(arguments, cwd=EXPERTMESH.folder, env=EXPERTMESH.base_env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, preexec_fn=lambda: libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0))
    counts = []
    for line in process.stdout:
        if line.startswith("step "):
            with open("/proc/%d/stat" % process.pid, encoding="utf-8") as file:
                counts.append(int(file.read().rsplit(")", 1)[1].split()[7]))
    errors = process.stderr.read()
    if process.wait() or len(counts) != STEPS:
        raise Failure("exit %d after %d steps: %s" % (process.returncode, len(counts), errors))
    return [after - before for before, after in zip(counts, counts[1:])]


def test_steady(name, rows, ranks, overrides):
    faults = count_faults(name, rows, ranks, overrides)
    steady = faults[WARM_STEPS - 1:]
    if sum(steady) > MOST_FAULTS_A_STEP * len(steady):
        raise Failure("%d faults in %d steps; by step: %s" % (sum(steady), len(steady), faults))


if __name__ == "__main__":
    assert LARGEST_TEMPORARY_PAGES > 4 * MOST_FAULTS_A_STEP
    with tempfile.TemporaryDirectory() as folder:
        EXPERTMESH = product.Program(sys.argv[1], folder)
        make_model()
        write_rows("equal", [256] * ROWS)
        write_rows("mixed", random.Random(2).sample(range(16, 257), ROWS))
        suite = Suite()
        mesh = ["dist_config.name=fsdpturbo", "dist_config.ep_size=2"]
        for lengths in ("equal", "mixed"):
            suite.add_named(lengths + " lengths, one rank", test_steady, "one_" + lengths, lengths, 1, [])
            suite.add_named(lengths + " lengths, two ranks", test_steady, "two_" + lengths, lengths, 2, mesh)
        sys.exit(suite.run(sys.argv[2:]))
