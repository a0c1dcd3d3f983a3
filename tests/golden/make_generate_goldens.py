#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes generate.json of some goldens: prompts and what transformers continues them with, greedily (README.md).

  make_generate_goldens.py [NAME ...]      all of them, or the named ones

Run it with the python that setup_reference.sh prints. Prompts are drawn until neither the choice of a token nor a routing
decision on the way is a near-tie, and the continuation does not merely repeat a few tokens.
"""
import json
import os
import random
import sys
import tempfile

import greedy
import hf_ref
import make_goldens
import torch
import transformers

# name -> how many distinct tokens each row has at least; tied embeddings and deeper models of random weights repeat themselves
FEWEST_DISTINCT = {"odd_sizes": 10, "dense_first": 6, "qwen3_5_whole": 20, "qwen3_5_text": 20, "qwen3_5_odd": 3}
# Shorter than a convolution, around the chunks of 16, 32 and 64, and several chunks.
LENGTHS = [1, 2, 3, 5, 16, 31, 32, 33, 48, 62, 63, 64, 65, 66, 96, 127, 128, 129, 150, 200]
NEW_TOKENS = 32
SMALLEST_GAP = 5 * greedy.NEAR_TIE
SMALLEST_ROUTER_GAP = 2e-6


def make_row(model, vocab, length, fewest, rng):
    """One prompt with its continuation; gives the row and the smallest gap."""
    for _ in range(200):
        ids = [rng.randrange(vocab) for _ in range(length)]
        new, gaps = greedy.continue_greedily(model, ids, NEW_TOKENS)
        if min(gaps) < SMALLEST_GAP or len(set(new)) < fewest or max(new) >= vocab:
            continue
        if make_goldens.router_margin(model, [dict(input_ids=ids + new)]) > SMALLEST_ROUTER_GAP:
            return dict(input_ids=ids, output_ids=new), min(gaps)
    raise RuntimeError("no prompt of %d tokens with a clear continuation was found" % length)


def choose_ends(rows):
    """Two ids that together end about half of the rows, at unlike places."""
    first_at = {}
    for row in rows:
        for token in set(row["output_ids"]):
            first_at.setdefault(token, []).append(row["output_ids"].index(token))
    by_use = sorted(first_at, key=lambda token: (-len(set(first_at[token])), token))
    return sorted(by_use[1:3])  # the most frequent one would end nearly everything


def make(name):
    spec = make_goldens.GOLDENS[name]
    golden, vocab = make_goldens.folder_of(name), make_goldens.num_ids(spec)
    with tempfile.TemporaryDirectory() as folder:
        make_goldens.write_model(golden, folder)
        model = hf_ref.load(folder).eval()
        rng = random.Random(spec["seed"])
        made = [make_row(model, vocab, length, FEWEST_DISTINCT[name], rng) for length in LENGTHS]
        rows, smallest = [row for row, _ in made], min(gap for _, gap in made)
        ends = choose_ends(rows)
        for row in rows:
            ended, _ = greedy.continue_greedily(model, row["input_ids"], NEW_TOKENS, eos_token_id=ends)
            assert ended == row["output_ids"][:len(ended)]
            row["tokens_until_end"] = len(ended)
    rows_text = ",\n".join("  " + json.dumps(row) for row in rows)
    with open(os.path.join(golden, "generate.json"), "w") as file:
        file.write('{"max_new_tokens": %d, "smallest_gap": %.2g, "eos_token_id": %s, "rows": [\n%s\n]}\n'
                   % (NEW_TOKENS, smallest, json.dumps(ends), rows_text))
    distinct = [len(set(row["output_ids"])) for row in rows]
    print("%s: smallest gap %.1e, %d to %d distinct ids of %d in a row, %d in all; ends %s stop at %s" % (
        name, smallest, min(distinct), max(distinct), NEW_TOKENS, len({t for row in rows for t in row["output_ids"]}), ends,
        [row["tokens_until_end"] for row in rows]), flush=True)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or FEWEST_DISTINCT:
        make(name)


if __name__ == "__main__":
    main()
