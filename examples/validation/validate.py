#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same training with one dispatcher after the other: same model, data and mesh, bf16, ranks as threads.

  validate.py compare [--steps 100] [--ranks 4] [--dispatchers fused,mc2,domino,nudged] [--pretrain 300]
      Fine-tunes the quick start's model on WordNet's definitions (scripts/quickstart.sh makes both) after --pretrain steps
      of training with eager, once for all; 0 starts from random weights. Each dispatcher against eager: correlation of the
      losses step by step, largest and mean difference, losses, tokens/s. Ends with 1 where a correlation is below
      --least-correlation (0.9999).
  validate.py endure [--steps 1000] [--ranks 8] [--dispatchers mc2,domino] [--rules rotating:2,burst:2/8]
      A tiny model on WordNet's text as bytes, with debug routers whose load changes from step to step: besides, memory and
      step time early and late.

Among the dispatchers `nudged` is eager once more with a learning rate that is larger by 3e-7 of itself: how far apart roundings alone drive
this training. Where it runs, the others may be twice as far from eager as it is.

Common: --expertmesh PROGRAM (build/release/expertmesh), --out DIR (outputs/validation), and key=value for the runs, as
micro_batch_size=8. A run that has its trainer_log.jsonl is read, not repeated. Standard library only.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("EXPERTMESH_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "expertmesh")
KINDS = {
    "compare": dict(steps=100, ranks=4, dispatchers="fused,mc2,domino,nudged", rules="", pretrain=300,
                    init=["--preset", "qwen3-moe-quickstart", "--tokenizer", os.path.join(CACHE, "tokenizers/qwen3")]),
    "endure": dict(steps=1000, ranks=8, dispatchers="mc2,domino", rules="rotating:2,burst:2/8", pretrain=0,
                   init=["--preset", "qwen3-moe-tiny"]),
}
BYTE_ROWS = 4000
NUDGE = 1 + 3e-7
PRETRAIN_KEYS = ["learning_rate=1e-3", "seed=7"]  # other rows first than in the runs that are compared
END_OF_ROW = 256


def call(command, **options):
    done = subprocess.run(command, **options)
    if done.returncode != 0:
        sys.exit("validate: %s ended with %d" % (" ".join(command), done.returncode))
    return done


def write_byte_rows(source, target):
    """Question and answer as the bytes of their text: the tiny model knows 512 ids and needs no tokenizer."""
    with open(source, encoding="utf-8") as rows, open(target + ".part", "w", encoding="utf-8") as out:
        for _, line in zip(range(BYTE_ROWS), rows):
            row = json.loads(line)
            question = list((row["instruction"] + "\n").encode())
            ids = question + list(row["output"].encode()) + [END_OF_ROW]
            out.write(json.dumps({"input_ids": ids, "labels": [-100] * len(question) + ids[len(question):]}) + "\n")
    os.replace(target + ".part", target)


def prepare(arguments, kind):
    """Model and rows, made once."""
    os.makedirs(arguments.out, exist_ok=True)
    rows = os.path.join(arguments.out, "train.jsonl")
    if not os.path.exists(rows):
        call([sys.executable, os.path.join(ROOT, "scripts/make_wordnet_rows.py"), "--out", arguments.out])
    if arguments.kind == "endure":
        write_byte_rows(rows, os.path.join(arguments.out, "bytes.jsonl"))
    model = os.path.join(arguments.out, arguments.kind + "-model")
    if not os.path.exists(os.path.join(model, "config.json")):
        call([arguments.expertmesh, "init", *kind["init"], "--out", model], stdout=subprocess.DEVNULL)
    info = os.path.join(arguments.out, arguments.kind + "-data.yaml")
    with open(info, "w", encoding="utf-8") as file:
        name, converter = ("bytes", "tokenized") if arguments.kind == "endure" else ("train", "alpaca")
        file.write("rows:\n  path: %s/%s.jsonl\n  source: local\n  converter: %s\n" % (arguments.out, name, converter))
    if arguments.pretrain:
        model = pretrain(arguments, model, info)
    return model, info


def pretrain(arguments, model, info):
    """A model that knows the text a little: what is fine-tuned, as users do, is no random weights."""
    out = os.path.join(arguments.out, series(arguments))
    if not os.path.exists(os.path.join(out, "config.json")):
        run_sft(arguments, out, ["model=" + model, "train_dataset=" + info, "output_dir=" + out, "max_steps=%d" % arguments.pretrain,
                                 *PRETRAIN_KEYS])
    return out


def series(arguments):
    """How the names of runs begin: with another --pretrain they are other runs."""
    return arguments.kind + ("-pretrained-%d" % arguments.pretrain if arguments.pretrain else "")


def config_path(arguments):
    return os.path.join(ROOT, "examples/validation/%s.yaml" % arguments.kind)


def run_sft(arguments, out, keys):
    """Trains; what it prints lies in OUT.txt."""
    begin, used = time.monotonic(), os.times().children_user
    with open(out + ".txt", "w", encoding="utf-8") as text:
        call([arguments.expertmesh, "sft", config_path(arguments), *keys, "--ranks", str(arguments.ranks)], stdout=text,
             stderr=subprocess.STDOUT)
    print("%s: %.0f s, %.0f s of CPU time" % (os.path.basename(out), time.monotonic() - begin, os.times().children_user - used),
          flush=True)


def nudged_learning_rate(arguments):
    """A key for the learning rate of the configuration and its keys, a little larger."""
    with open(config_path(arguments), encoding="utf-8") as file:
        words = [line.replace(": ", "=").split()[0] for line in file if line.startswith("learning_rate:")]
    words += [key for key in arguments.keys if key.startswith("learning_rate=")]
    return "learning_rate=%r" % (float(words[-1].split("=")[1]) * NUDGE)


def train(arguments, model, info, dispatcher, rule, steps):
    """Trains unless it was done before; gives the log's records."""
    name = "%s-%s%s" % (series(arguments), dispatcher, "-" + rule.replace(":", "").replace("/", "of") if rule else "")
    out = os.path.join(arguments.out, name)
    log = os.path.join(out, "trainer_log.jsonl")
    if not os.path.exists(log):
        keys = ["model=" + model, "train_dataset=" + info, "output_dir=" + out, "max_steps=%d" % steps,
                "dist_config.ep_dispatcher=" + ("eager" if dispatcher == "nudged" else dispatcher), *arguments.keys]
        if dispatcher == "nudged":
            keys.append(nudged_learning_rate(arguments))
        if rule:
            keys.append("debug_router=" + rule)
        run_sft(arguments, out, keys)
    with open(log, encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    if len(records) != steps:
        sys.exit("validate: %s has %d records for %d steps; remove %s to train again" % (log, len(records), steps, out))
    return records


def correlation(a, b):
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    spread = math.sqrt(math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b))
    return math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b)) / spread if spread else math.nan


def medians_of_ends(records, key):
    part = max(1, len(records) // 10)
    return [statistics.median(record[key] for record in records[cut]) for cut in (slice(part), slice(-part, None))]


def row_of(name, records, eager):
    losses, wanted = [[record["loss"] for record in run] for run in (records, eager)]
    gaps = [abs(a - b) for a, b in zip(losses, wanted)]
    tenth = max(1, len(gaps) // 10)
    early, late = medians_of_ends(records, "step_s")
    memory = [records[min(len(records), max(1, len(records) // 10)) - 1]["rss_mib"], records[-1]["rss_mib"]]
    skipped = records[-1]["skipped_steps"]
    return [name, "%.6f" % correlation(losses, wanted), "%.1e" % max(gaps), "%.1e" % statistics.fmean(gaps),
            "%+.1e" % (statistics.fmean(losses[-tenth:]) - statistics.fmean(wanted[-tenth:])),
            "%.4f -> %.4f" % (losses[0], losses[-1]), str(skipped),
            "%.1f -> %.1f" % (1e3 * early, 1e3 * late), "%d -> %d" % tuple(memory)]


HEADER = ["dispatcher", "correlation", "max difference", "mean", "last tenth", "loss", "skipped", "ms a step", "MiB"]


def print_table(rows):
    for index, row in enumerate([HEADER, ["---"] * len(HEADER), *rows]):
        print("| " + " | ".join(row) + " |" if index != 1 else "|" + "|".join(row) + "|", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("keys", nargs="*", help="key=value of the configuration")
    parser.add_argument("--expertmesh", default=os.path.join(ROOT, "build/release/expertmesh"))
    parser.add_argument("--out", default="outputs/validation")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--pretrain", type=int)
    parser.add_argument("--dispatchers")
    parser.add_argument("--rules")
    parser.add_argument("--least-correlation", type=float, default=0.9999)
    arguments = parser.parse_intermixed_args()
    kind = KINDS[arguments.kind]
    for name in ("steps", "ranks", "pretrain", "dispatchers", "rules"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, kind[name])
    model, info = prepare(arguments, kind)
    failures = []
    for rule in arguments.rules.split(","):
        runs = {dispatcher: train(arguments, model, info, dispatcher, rule, arguments.steps)
                for dispatcher in ["eager", *arguments.dispatchers.split(",")]}
        rows = [row_of(name, records, runs["eager"]) for name, records in runs.items()]
        print("\n%s, %d steps on %d ranks%s" % (arguments.kind, arguments.steps, arguments.ranks,
                                                ", debug_router " + rule if rule else ""))
        print_table(rows)
        correlations = {row[0]: float(row[1]) for row in rows}
        least = min(arguments.least_correlation, 1 - 2 * (1 - correlations.pop("nudged"))) if "nudged" in correlations else arguments.least_correlation
        failures += ["%s: a correlation of %.6f is below %g" % (name, value, least) for name, value in correlations.items() if not value >= least]
    if failures:
        sys.exit("validate: " + "\nvalidate: ".join(failures))


if __name__ == "__main__":
    main()
