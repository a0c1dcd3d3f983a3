#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times ExpertMesh against Hugging Face transformers with PyTorch on the bench-size models, in one interleaved run.

  bench/hf_compare.py EXPERTMESH [--kind qwen3_moe|qwen3_5_moe_text] [--rounds N] [--steps N] [--page FILE] [key=value ...]

Run it with the python that tests/golden/setup_reference.sh prints. Each round runs, one after the other, so that a slow minute
of the machine meets all of them:
  hf        transformers, one process, 2 threads, AdamW on bf16 weights
  hf-fsdp2  the same as 2 processes with torch FSDP2 over Gloo
  ours      expertmesh, 2 rank threads, `master_weights: none` (the same numerics), recompute off, the dispatcher that `auto` takes
  ours-fp32 the same with fp32 master weights (our default)
  ours-re   as ours, with activation recompute
All train on the same rows in the same order. Reported are the medians over the rounds of each run's best step, the peak of
resident memory, the losses' largest difference, and the time from exec to the first logged step of a tiny model. --page writes the result as
Markdown. `key=value` are keys of ours, e.g. dist_config.ep_dispatcher=mc2.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import peer
from peer import run

TOKENS, BATCH, VOCAB = 512, 4, 151936
MODELS = {  # kind -> how its bench-size model reads
    "qwen3_moe": "Qwen3-MoE, hidden 512, 8 layers, 64 experts, top-8, expert width 192, vocabulary 151,936 (tied), bf16",
    "qwen3_5_moe_text": "Qwen3.5-MoE, hidden 512, 8 layers (2 of full attention), 64 experts, top-8, expert and shared width 128, vocabulary 151,936 "
                        "(tied), bf16",
}
RATIOS = [("tokens/s against hf", "ours", "hf", "tokens_per_s", 3.0), ("tokens/s against hf-fsdp2", "ours", "hf-fsdp2", "tokens_per_s", 3.7),
          ("memory of ours against hf", "ours", "hf", "peak_rss_mib", 0.4), ("memory of ours-fp32 against hf", "ours-fp32", "hf", "peak_rss_mib", 0.7)]


def make_rows(folder, name, count, tokens, vocab):
    """The same sequences twice: for hf_ref.py (input_ids) and for us (labels too)."""
    path = os.path.join(folder, name + ".jsonl")
    peer.write_jsonl(path, [dict(input_ids=ids, labels=ids) for ids in peer.random_ids(1, count, tokens, vocab)])
    info = os.path.join(folder, name + ".yaml")
    with open(info, "w") as file:
        json.dump({"rows": {"path": path, "source": "local", "converter": "tokenized"}}, file)
    return path, info


def time_hf(model, rows, steps, ranks):
    command = [sys.executable, peer.HF_REF, "bench", model, "--rows", rows, "--steps", str(steps), "--batch",
               str(BATCH // ranks), "--ranks", str(ranks), "--threads", str(2 // ranks)]
    text, peak = run(command, OMP_NUM_THREADS=str(2 // ranks))
    result = json.loads(text.splitlines()[-1])
    return dict(tokens_per_s=result["tokens_per_s"], losses=result["losses"],
                peak_rss_mib=peak if ranks == 1 else result["peak_rss_mib_all_ranks"])


def settings_of(model, info, out, steps, overrides):
    settings = {"model": model, "train_dataset": info, "output_dir": out, "shuffle": "false", "bf16": "true",
                "micro_batch_size": "2", "global_batch_size": str(BATCH), "max_steps": str(steps), "logging_steps": "1",
                "cutoff_len": str(TOKENS), "learning_rate": "1e-4", "enable_activation_checkpointing": "false",
                "dist_config.name": "fsdpturbo", "dist_config.ep_size": "2", "dist_config.ep_dispatcher": "auto",
                "optim_config.name": "adamw", "optim_config.master_weights": "none"}
    settings.update(word.split("=", 1) for word in overrides)
    return settings


def write_config(path, settings):
    """key.sub: value lines as nested YAML."""
    sections = {}
    for key, value in settings.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append((name, value))
    with open(path, "w") as file:
        for section, pairs in sorted(sections.items()):
            file.write("%s:\n" % section if section else "")
            file.writelines("%s%s: %s\n" % ("  " if section else "", name, value) for name, value in pairs)


def time_ours(program, model, info, folder, steps, overrides):
    out = os.path.join(folder, "out")
    config = os.path.join(folder, "sft.yaml")
    write_config(config, settings_of(model, info, out, steps, overrides))
    _, peak = run([program, "sft", config, "--ranks", "2"])
    with open(os.path.join(out, "trainer_log.jsonl")) as file:
        log = [json.loads(line) for line in file]
    with open(os.path.join(out, "config.resolved.yaml")) as file:
        dispatcher = next(line.split()[1] for line in file if line.strip().startswith("ep_dispatcher:"))
    run(["rm", "-rf", out])
    best = min(row["step_s"] for row in log[1:])
    return dict(tokens_per_s=BATCH * TOKENS / best, losses=[row["loss"] for row in log], peak_rss_mib=peak,
                dispatcher=dispatcher)


def time_start(program, folder):
    """Seconds from exec to the first line of trainer_log.jsonl, the median of five."""
    model = peer.make_model(folder, "qwen3_moe", "tiny")
    _, info = make_rows(folder, "tiny_rows", 8, 32, 512)
    seconds = []
    for attempt in range(5):
        out = os.path.join(folder, "start%d" % attempt)
        config = os.path.join(folder, "start.yaml")
        settings = settings_of(model, info, out, 1, ["micro_batch_size=1", "global_batch_size=2", "dist_config.ep_dispatcher=eager"])
        write_config(config, settings)
        log = os.path.join(out, "trainer_log.jsonl")
        begin = time.perf_counter()
        process = subprocess.Popen([program, "sft", config, "--ranks", "2"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while not (os.path.exists(log) and os.path.getsize(log)) and process.poll() is None:
            time.sleep(0.002)
        seconds.append(time.perf_counter() - begin)
        if process.wait():
            sys.exit("hf_compare: the tiny run failed with exit code %d" % process.returncode)
    return statistics.median(seconds)


def summarise(rounds):
    """Per contender: medians, and the losses of its last round."""
    result = {}
    for name in rounds[0]:
        runs = [one[name] for one in rounds]
        result[name] = {key: statistics.median(run[key] for run in runs) for key in ("tokens_per_s", "peak_rss_mib")}
        result[name]["losses"] = runs[-1]["losses"]
        result[name]["dispatchers"] = sorted({run["dispatcher"] for run in runs if "dispatcher" in run})
    return result


def page_of(result, start_s, arguments):
    lines = peer.page_head("Against Hugging Face transformers: " + arguments.kind, arguments.expertmesh) + [
             "* Model: %s." % MODELS[arguments.kind],
             "* Work: full-parameter AdamW, %d sequences of %d tokens a step, %d steps, the best of all but the first; "
             "medians of %d interleaved rounds." % (BATCH, TOKENS, arguments.steps, arguments.rounds),
             "* Peer: %s, grouped_mm experts, SDPA attention." % peer.PEER,
             "* Settings of ours beside the script's: %s." % (" ".join(arguments.overrides) or "none"),
             "* `ep_dispatcher: auto` took: %s." % ", ".join(sorted({d for row in result.values() for d in row["dispatchers"]})), "",
             "| run | tokens/s | peak memory, MiB | loss of the first and last step |", "|---|---|---|---|"]
    for name, row in result.items():
        lines.append("| %s | %.0f | %.0f | %.4f, %.4f |" % (name, row["tokens_per_s"], row["peak_rss_mib"],
                                                            row["losses"][0], row["losses"][-1]))
    lines += ["", "| goal | reached | wanted |", "|---|---|---|"]
    for text, ours, theirs, key, wanted in RATIOS:
        ratio = result[ours][key] / result[theirs][key]
        lines.append("| %s | %.2fx | %s %.1fx |" % (text, ratio, "at least" if key == "tokens_per_s" else "at most", wanted))
    lines.append("| exec to first logged step, tiny model | %.2f s | under 1 s |" % start_s)
    difference = max(abs(a - b) for a, b in zip(result["ours"]["losses"], result["hf"]["losses"], strict=True))
    lines += ["", "Largest difference between a loss of ours and of hf: %.4f." % difference, ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("expertmesh", help="the program")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys of our configuration")
    parser.add_argument("--kind", choices=MODELS, default="qwen3_moe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--page", help="write the result as Markdown")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        model = peer.make_model(folder, arguments.kind, "bench")
        rows, info = make_rows(folder, "rows", BATCH * arguments.steps, TOKENS, VOCAB)
        start_s = time_start(arguments.expertmesh, folder)

        def ours(*keys):
            return lambda: time_ours(arguments.expertmesh, model, info, folder, arguments.steps, [*keys, *arguments.overrides])

        contenders = {
            "hf": lambda: time_hf(model, rows, arguments.steps, 1),
            "ours": ours(),
            "hf-fsdp2": lambda: time_hf(model, rows, arguments.steps, 2),
            "ours-fp32": ours("optim_config.master_weights=fp32"),
            "ours-re": ours("enable_activation_checkpointing=true"),
        }
        rounds = []
        for number in range(arguments.rounds):
            rounds.append({})
            for name, contender in contenders.items():
                rounds[-1][name] = contender()
                print("round %d %-9s %8.0f tokens/s  %6.0f MiB" % (number + 1, name, rounds[-1][name]["tokens_per_s"],
                                                                  rounds[-1][name]["peak_rss_mib"]), flush=True)
    peer.publish(page_of(summarise(rounds), start_s, arguments), arguments.page)


if __name__ == "__main__":
    main()
