#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`expertmesh generate` continues the prompts of every generate.json as transformers did, token for token in fp32: one by one
and eight at once, on one rank and with the experts on two; and it stops at end tokens.

    tests/golden/generate_test.py EXPERTMESH WRITE_GOLDEN_MODEL [TEXT ...]
"""
import glob
import itertools
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import product  # noqa: E402
from product import Failure  # noqa: E402
from suite import Suite  # noqa: E402

NUM_PROMPTS, SMALLEST_GAP = 20, 1e-4
MESHES = {"one_rank": ["--ranks", "1"],
          "ep_2": ["--ranks", "2", "dist_config.name=fsdpturbo", "dist_config.ep_size=2"]}
COUNTER = itertools.count()


class Golden:
    """One model with its prompts; `ended` says whether the end tokens count."""

    def __init__(self, path):
        self.name = os.path.basename(os.path.dirname(path))
        self.family = os.path.basename(os.path.dirname(os.path.dirname(path)))
        with open(path, encoding="ascii") as file:
            content = json.load(file)
        self.max_new_tokens, self.ends, self.rows = content["max_new_tokens"], content["eos_token_id"], content["rows"]
        self.smallest_gap = content["smallest_gap"]

    def prompts(self):
        return [{"input_ids": row["input_ids"]} for row in self.rows]

    def wanted(self, row, ended):
        count = row["tokens_until_end"] if ended else self.max_new_tokens
        ids = row["output_ids"][:count]
        return {"output_ids": ids, "finish_reason": "stop" if ended and ids[-1] in self.ends else "length",
                "prompt_tokens": len(row["input_ids"]), "tokens": count}


def load_goldens():
    return [Golden(path) for path in sorted(glob.glob(os.path.join(HERE, "*", "*", "generate.json")))]


def make_model(golden, name):
    folder = os.path.join(EXPERTMESH.folder, name)
    os.makedirs(folder)
    subprocess.run([sys.argv[2], golden.name, folder], check=True)
    return folder


def difference(got, wanted):
    """What differs between two rows of output, in words; nothing where they agree."""
    if got == wanted:
        return None
    ours, theirs = got.get("output_ids", []), wanted["output_ids"]
    for at, (a, b) in enumerate(zip(ours, theirs)):
        if a != b:
            return "new token %d is %d instead of %d" % (at, a, b)
    return "got %s instead of %s" % (got, wanted)


def compare(golden, model, ended, batch, mesh):
    number = next(COUNTER)
    source, target = ("%s%d.jsonl" % (kind, number) for kind in ("prompts", "answers"))
    with open(os.path.join(EXPERTMESH.folder, source), "w", encoding="ascii") as file:
        file.writelines(json.dumps(row) + "\n" for row in golden.prompts())
    run = EXPERTMESH(["generate", "--model", model, "--input", source, "--output", target, "--greedy", "--bf16", "false",
                      "--max-new-tokens", str(golden.max_new_tokens), "--batch", str(batch)] + MESHES[mesh], limit=180)
    run.expect_code(0)
    with open(os.path.join(EXPERTMESH.folder, target), encoding="utf-8") as file:
        answers = [json.loads(line) for line in file]
    if len(answers) != len(golden.rows):
        run.fail("%d rows for %d prompts" % (len(answers), len(golden.rows)))
    faults = []
    for number, (row, answer) in enumerate(zip(golden.rows, answers), 1):
        fault = difference(answer, golden.wanted(row, ended))
        if fault:
            faults.append("row %d, a prompt of %d tokens: %s" % (number, len(row["input_ids"]), fault))
    if faults:
        run.fail("%d of %d rows differ\n  %s" % (len(faults), len(answers), "\n  ".join(faults)))


def test_continuations(golden, batch, mesh):
    compare(golden, golden.name, False, batch, mesh)


def test_ends_in_config(golden):
    """config.json names the end tokens, and there is no generation_config.json."""
    folder = make_model(golden, golden.name + "_config_ends")
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.get("text_config", config)["eos_token_id"] = golden.ends
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    for batch in (1, 8):
        compare(golden, folder, True, batch, "one_rank")


def test_ends_in_generation_config(golden):
    """generation_config.json wins over config.json, whose end token would stop some rows at once."""
    folder = make_model(golden, golden.name + "_generation_ends")
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    config.get("text_config", config)["eos_token_id"] = golden.rows[0]["output_ids"][0]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token_id": golden.ends}, file)
    compare(golden, folder, True, 8, "one_rank")
    compare(golden, folder, True, 3, "ep_2")


def test_goldens_are_worth_it(goldens):
    """Both families, twenty prompts each, no near-ties, rows that stop early at unlike places and rows that do not."""
    if {golden.family for golden in goldens} != {"qwen3_moe", "qwen3_5_moe"}:
        raise Failure("the families with a generate.json are %s" % {golden.family for golden in goldens})
    for golden in goldens:
        if len(golden.rows) != NUM_PROMPTS or golden.smallest_gap < SMALLEST_GAP:
            raise Failure("%s: %d rows, smallest gap %g" % (golden.name, len(golden.rows), golden.smallest_gap))
        stops = {len(golden.wanted(row, True)["output_ids"]) for row in golden.rows}
        if len(stops) < 4 or golden.max_new_tokens not in stops:
            raise Failure("%s: rows end after %s tokens" % (golden.name, sorted(stops)))
        for row in golden.rows:
            if any(token in golden.ends for token in row["output_ids"][:row["tokens_until_end"] - 1]):
                raise Failure("%s: an end token before tokens_until_end" % golden.name)


def main():
    global EXPERTMESH
    with tempfile.TemporaryDirectory(prefix="expertmesh_generate_") as folder:
        EXPERTMESH = product.Program(sys.argv[1], folder)
        goldens = load_goldens()
        suite = Suite()
        suite.add_named("goldens_are_worth_it", test_goldens_are_worth_it, goldens)
        for golden in goldens:
            make_model(golden, golden.name)
            for batch, mesh in itertools.product((1, 8), MESHES):
                suite.add_named("%s_batch_%d_%s" % (golden.name, batch, mesh), test_continuations, golden, batch, mesh)
            suite.add_named(golden.name + "_ends_in_config", test_ends_in_config, golden)
            suite.add_named(golden.name + "_ends_in_generation_config", test_ends_in_generation_config, golden)
        return suite.run(sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
