#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares a built expertmesh with Hugging Face transformers on fresh random models, every element of every tensor.

  live_compare.py EXPERTMESH [--seeds N,N,...] [--ranks N] [CASE ...] [key=value ...]

Run it with the python that setup_reference.sh prints; without torch and transformers it says that it is skipped and exits
with 77. For each case and seed: log-probabilities of `score`, greedy tokens of `generate` and six clipped steps of SGD and AdamW, all in fp32,
and gradients at the first and at AdamW's last weights, ours in fp32 and theirs in fp64, against the bounds of README.md. --ranks and keys of the configuration
run the trainings on a mesh:
  live_compare.py build/release/expertmesh --ranks 4 tiny dist_config.name=fsdpturbo dist_config.ep_size=2
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from types import SimpleNamespace

try:
    import torch
    import transformers
    from safetensors.torch import load_file
    import greedy
    import hf_ref
except ImportError as error:
    print("live_compare: skipped, the reference environment is not installed (%s); see setup_reference.sh" % error)
    sys.exit(77)

YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
CASES = {
    "tiny": dict(),
    "small": dict(size="small"),
    "no_norm_topk": dict(norm_topk_prob=False),
    "mixed_dense": dict(num_hidden_layers=4, mlp_only_layers=[0], decoder_sparse_step=1),
    "tied": dict(tie_word_embeddings=True),
    "odd_sizes": dict(vocab_size=509, num_experts=12, moe_intermediate_size=36),
    "yarn": dict(rope_parameters=YARN, max_position_embeddings=128),
    "fused": dict(fused=True),
    "qwen3_5": dict(kind="qwen3_5_moe"),
    "qwen3_5_split": dict(kind="qwen3_5_moe", split=True, linear_num_key_heads=4),
    "qwen3_5_text": dict(kind="qwen3_5_moe_text"),
}
NUM_STEPS, SAMPLES_A_STEP = 6, 4
PACKED = dict(batching_strategy="padding_free", flash_attn="flash_attention_2", micro_batch_size=SAMPLES_A_STEP)
# How many times as far from the truth a trace may be as transformers' own roundings take it.
SPREADS = 4
# One SGD step with it leaves the gradient in the weights, to the last bits: those of the smallest gradients (A_log where
# decays are strong) must not drown in the digits of the weights that they are taken from.
HUGE_RATE = 2.0**60


class Comparison:
    def __init__(self):
        self.faults = 0

    def check(self, what, error, bound):
        is_good = error <= bound
        self.faults += not is_good
        print("  %-40s %.2e  (bound %.0e)%s" % (what, error, bound, "" if is_good else "  <-- too far"), flush=True)


def write_jsonl(path, rows):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def read_jsonl(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def make_model(case, seed, out):
    changes = dict(CASES[case])
    kind, size = changes.pop("kind", "qwen3_moe"), changes.pop("size", "tiny")
    hf_ref.make(SimpleNamespace(kind=kind, out=out, seed=seed, size=size, dtype="float32",
                                fused=changes.pop("fused", False), split=changes.pop("split", False),
                                set=["%s=%s" % (k, json.dumps(v)) for k, v in changes.items()]))
    with open(os.path.join(out, "config.json")) as file:
        config = json.load(file)
    # The last ids of a model with a vision tower stand for images.
    return config["text_config"]["vocab_size"] - 4 if "text_config" in config else config["vocab_size"]


def make_samples(vocab, seed):
    rng = random.Random(seed)
    samples = []
    for _ in range(NUM_STEPS * SAMPLES_A_STEP):
        ids = [rng.randrange(vocab) for _ in range(rng.choice([2, 5, 17, 40, 90]))]
        labels = [-100 if t < len(ids) - 1 and rng.random() < 0.3 else y for t, y in enumerate(ids)]
        samples.append(dict(input_ids=ids, labels=labels))
    return samples


class Trainer:
    """Runs `expertmesh sft` on the samples with fixed settings, in a folder of its own."""

    def __init__(self, arguments, model, folder, samples):
        self.arguments, self.model, self.folder, self.samples = arguments, model, folder, samples
        os.makedirs(folder, exist_ok=True)
        write_jsonl(os.path.join(folder, "rows.jsonl"), samples)
        with open(os.path.join(folder, "rows.yaml"), "w") as file:
            json.dump({"rows": {"path": os.path.join(folder, "rows.jsonl"), "source": "local",
                                "converter": "tokenized"}}, file)

    def run(self, name, **keys):
        out = os.path.join(self.folder, name)
        settings = {"model": self.model, "train_dataset": os.path.join(self.folder, "rows.yaml"), "output_dir": out,
                    "shuffle": False, "bf16": False, "micro_batch_size": 1, "global_batch_size": SAMPLES_A_STEP,
                    "max_steps": NUM_STEPS, "logging_steps": 1, "cutoff_len": 128, "max_grad_norm": 1.0, **keys}
        config = os.path.join(self.folder, name + ".yaml")
        with open(config, "w") as file:
            json.dump(settings, file)  # JSON is YAML
        run_program([self.arguments.expertmesh, "sft", config, "--ranks", str(self.arguments.ranks),
                     *self.arguments.set])
        return read_jsonl(os.path.join(out, "trainer_log.jsonl")), read_model(out)


def run_program(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("live_compare: %s\n%s%s\nexit code %d" % (" ".join(command), done.stdout, done.stderr, done.returncode))


def read_model(folder):
    """Tensors of a saved model under transformers' own names: experts fused."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, name)))
    return tensors if any(name.endswith("gate_up_proj") for name in tensors) else hf_ref.fuse_experts(tensors)


def relative(got, wanted):
    return max(abs(a - b) / abs(b) for a, b in zip(got, wanted, strict=True))


def compare_tensors(comparison, what, got, wanted, bound):
    """Largest difference as a fraction of the tensor's largest value."""
    comparison.check(what, max(errors.max().item() for errors in relative_errors(got, wanted)), bound)


def relative_errors(got, wanted):
    assert set(wanted) <= set(got), sorted(set(wanted) - set(got))
    for name, tensor in wanted.items():
        errors = ((got[name].to(tensor.dtype) - tensor).abs() / tensor.abs().max().clamp(min=1e-30)).reshape(-1)
        yield errors.nan_to_num(nan=float("inf"))


def noise_quantiles(got, wanted):
    """Of the relative errors: what 99.5% of all elements stay below, and all but one in 100,000."""
    together = torch.cat(list(relative_errors(got, wanted))).sort(descending=True).values
    return [together[together.numel() // part].item() for part in (200, 100000)]


def compare_scores(comparison, arguments, model, folder, vocab, seed, what="log-probability of a token"):
    rng = random.Random(seed + 500)
    rows = [dict(input_ids=[rng.randrange(vocab) for _ in range(n)]) for n in (2, 9, 33, 100, 1)]
    paths = [os.path.join(folder, name) for name in ("score_in.jsonl", "score_ours.jsonl", "score_hf.jsonl")]
    write_jsonl(paths[0], rows)
    run_program([arguments.expertmesh, "score", "--model", model, "--input", paths[0], "--output", paths[1]])
    hf_ref.score(SimpleNamespace(model=model, dtype="float32", input=paths[0], output=paths[2]))
    worst = 0.0
    for ours, theirs in zip(read_jsonl(paths[1]), read_jsonl(paths[2]), strict=True):
        for a, b in zip(ours["logprobs"], theirs["logprobs"], strict=True):
            worst = max(worst, abs(a - b))
    comparison.check(what, worst, 2e-5)


def compare_generation(comparison, arguments, model, folder, vocab, seed):
    """Greedy tokens up to where transformers' best two logits nearly tie; what follows there is chance."""
    rng = random.Random(seed + 700)
    rows = [dict(input_ids=[rng.randrange(vocab) for _ in range(n)]) for n in (1, 7, 40, 65, 130)]
    paths = [os.path.join(folder, name) for name in ("prompts.jsonl", "answers.jsonl")]
    write_jsonl(paths[0], rows)
    run_program([arguments.expertmesh, "generate", "--model", model, "--input", paths[0], "--output", paths[1], "--greedy", "--bf16",
                 "false", "--max-new-tokens", "32", "--batch", "3"])
    reference, differ, compared = hf_ref.load(model).eval(), 0, 0
    for row, answer in zip(rows, read_jsonl(paths[1]), strict=True):
        wanted, gaps = greedy.continue_greedily(reference, row["input_ids"], 32)
        clear = next((at for at, gap in enumerate(gaps) if gap < greedy.NEAR_TIE), len(wanted))
        differ += answer["output_ids"][:clear] != wanted[:clear]
        compared += clear
    comparison.check("greedy: rows that differ, of %d tokens" % compared, differ if compared else 1, 0)


def compare_saved(comparison, saved, source):
    """transformers loads what was saved without a word about names, and what is not trained is there to the byte."""
    config = transformers.AutoConfig.from_pretrained(saved)
    _, info = hf_ref.model_class(config).from_pretrained(saved, dtype=torch.float32, output_loading_info=True)
    comparison.check("saved: keys that transformers misses",
                     sum(len(info[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), 0)
    before, after = (load_file(os.path.join(path, "model.safetensors")) for path in (source, saved))
    comparison.check("saved: names that differ", len(set(before) ^ set(after)), 0)
    carried = [name for name in before if name.startswith(("mtp.", "model.visual."))]
    comparison.check("saved: untrained tensors that differ",
                     sum(before[n].dtype != after[n].dtype or not torch.equal(before[n], after[n]) for n in carried), 0)


def trace_transformers(trainer, name, num_steps=NUM_STEPS, perturb_seed=None, save_before_step=0, **settings):
    """Runs transformers on the samples, with perturb_seed from weights that differ by some fp32 roundings; gives the folder
    of what it wrote."""
    out, batches = os.path.join(trainer.folder, "hf_" + name), os.path.join(trainer.folder, "batches.jsonl")
    write_jsonl(batches, [dict(samples=trainer.samples[step * SAMPLES_A_STEP:][:SAMPLES_A_STEP]) for step in range(num_steps)])
    hf_ref.trace(SimpleNamespace(model=trainer.model, batches=batches, out=out, max_norm=1.0, wd=0.01,
                                 perturb=0.0 if perturb_seed is None else 2.0**-22, perturb_seed=perturb_seed,
                                 save_before_step=save_before_step, **settings))
    return out


def is_of_decay(name):
    return name.endswith((".A_log", ".dt_bias"))


def compare_gradients(comparison, trainer, has_decays, where=""):
    """Of one step, with transformers in fp64: in fp32 it loses digits of its own where decays are strong, up to 5e-3 of
    A_log's largest. The bounds of models with decays are what these cases show of fp32 over many seeds, ours and
    transformers' (docs/results/strong_decays.md)."""
    traced = trace_transformers(trainer, "gradients", num_steps=1, optim="sgd", lr=0.0, dtype="float64")
    wanted = load_file(os.path.join(traced, "grads_step1.safetensors"))
    before = read_model(trainer.model)
    for what, keys in (("alone", {}), ("packed", PACKED)):
        _, after = trainer.run("one_step_" + what, learning_rate=HUGE_RATE, optim_config={"name": "sgd"}, max_steps=1,
                               max_grad_norm=1e30, **keys)
        gradients = {name: (before[name].double() - after[name].double()) / HUGE_RATE for name in before}
        compare_tensors(comparison, "gradients of samples %s%s" % (what, where), gradients,
                        {name: x for name, x in wanted.items() if not is_of_decay(name)}, 2e-5 if has_decays else 5e-6)
        if has_decays:
            compare_tensors(comparison, "gradients of decays, %s%s" % (what, where), gradients,
                            {name: x for name, x in wanted.items() if is_of_decay(name)}, 1e-4)


def compare_sgd(comparison, trainer):
    traced = trace_transformers(trainer, "sgd", optim="sgd", lr=0.05, dtype="float32")
    wanted = read_jsonl(os.path.join(traced, "trace.jsonl"))
    log, weights = trainer.run("sgd", learning_rate=0.05, optim_config={"name": "sgd"})
    for key in ("loss", "grad_norm"):
        comparison.check("sgd: %s of a step" % key, relative([row[key] for row in log], [row[key] for row in wanted]), 1e-5)
    compare_tensors(comparison, "sgd: weights after six steps", weights, load_file(os.path.join(traced, "final.safetensors")), 5e-6)


def compare_adamw(comparison, trainer, has_decays):
    """AdamW divides by the root of the second moment: where an element's only gradients are rounding noise (a row of the
    embedding whose token came once, say), the noise moves it by a whole learning rate; and where two experts of a token
    tie within that, the token goes elsewhere. So the trace may be as far from transformers in fp64 as a few times what
    transformers itself is when it computes in fp32 or starts from weights that differ by some roundings. What such a bound
    would let through, gradients at the last step's very weights do not."""
    def trace(name, **settings):
        out = trace_transformers(trainer, name, optim="adamw", lr=1e-3, **settings)
        return out, read_jsonl(os.path.join(out, "trace.jsonl")), load_file(os.path.join(out, "final.safetensors"))

    exact, wanted, final = trace("adamw", dtype="float64", save_before_step=NUM_STEPS)
    peers = [trace("adamw_fp32", dtype="float32")]
    peers += [trace("adamw_perturbed%d" % seed, dtype="float64", perturb_seed=seed) for seed in range(6)]
    log, weights = trainer.run("adamw", learning_rate=1e-3, optim_config={"name": "adamw"})

    def column(rows, key):
        return [row[key] for row in rows]

    for key in ("loss", "grad_norm"):
        spread = max(relative(column(rows, key), column(wanted, key)) for _, rows, _ in peers)
        comparison.check("adamw: %s of a step" % key, relative(column(log, key), column(wanted, key)), 1e-5 + SPREADS * spread)
    ours = noise_quantiles(weights, final)
    theirs = zip(*(noise_quantiles(last, final) for _, _, last in peers), strict=True)
    for what, value, spread, least in zip(("99.5% of the weights", "all but noise"), ours, map(max, theirs), (2e-4, 5e-3), strict=True):
        comparison.check("adamw: " + what, value, least + SPREADS * spread)

    at_last = Trainer(trainer.arguments, os.path.join(exact, "before_step%d" % NUM_STEPS), os.path.join(trainer.folder, "last"),
                      trainer.samples[-SAMPLES_A_STEP:])
    compare_gradients(comparison, at_last, has_decays, ", last step")


def compare(comparison, arguments, case, seed):
    print("%s, seed %d" % (case, seed), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model")
        vocab = make_model(case, seed, model)
        samples = make_samples(vocab, seed)
        compare_scores(comparison, arguments, model, folder, vocab, seed)
        compare_generation(comparison, arguments, model, folder, vocab, seed)
        trainer, has_decays = Trainer(arguments, model, folder, samples), "kind" in CASES[case]
        compare_gradients(comparison, trainer, has_decays)
        compare_sgd(comparison, trainer)
        compare_adamw(comparison, trainer, has_decays)
        saved = os.path.join(folder, "sgd")
        compare_saved(comparison, saved, model)
        compare_scores(comparison, arguments, saved, folder, vocab, seed, "saved: log-probability of a token")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("expertmesh", help="the program")
    parser.add_argument("words", nargs="*", metavar="CASE", help=", ".join(CASES) + "; or key=value of a configuration")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ranks", type=int, default=1)
    arguments = parser.parse_intermixed_args()
    arguments.set = [word for word in arguments.words if "=" in word]
    cases = [word for word in arguments.words if "=" not in word] or list(CASES)
    if not set(cases) <= set(CASES):
        parser.error("the cases are " + ", ".join(CASES))
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    comparison = Comparison()
    for case in cases:
        for seed in arguments.seeds.split(","):
            compare(comparison, arguments, case, int(seed))
    print("live_compare: %s" % ("%d differences" % comparison.faults if comparison.faults else "all within the bounds"))
    sys.exit(1 if comparison.faults else 0)


if __name__ == "__main__":
    main()
