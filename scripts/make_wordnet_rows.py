#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns WordNet 3.0 into training rows: one question a sense, answered by its gloss.

    python3 scripts/make_wordnet_rows.py --out DIR [--wordnet /usr/share/wordnet]

Reads data.noun, data.verb, data.adj and data.adv of the Debian package wordnet-base (117,659 senses) and writes
    DIR/train.jsonl     alpaca rows: {"instruction": "Define the noun \\"dog\\" ...", "input": "", "output": "a member of ..."}
    DIR/heldout.jsonl   every 1000th sense as {"messages": [...]}, not in train.jsonl: for `expertmesh score`
The same files give the same rows, byte for byte.
"""
import argparse
import json
import os
import sys

PARTS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
HELD_OUT_EVERY = 1000


def read_senses(path):
    """Words and gloss of each line: `offset file type count word id word id ... | gloss`, count in hexadecimal."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.startswith("  "):  # the licence at the top
                continue
            fields, bar, gloss = line.partition(" | ")
            fields = fields.split(" ")
            if not bar or len(fields) < 6:
                sys.exit("make_wordnet_rows: %s:%d: not a line of WordNet's data files" % (path, number))
            words = fields[4:4 + 2 * int(fields[3], 16):2]
            yield [word.split("(")[0].replace("_", " ") for word in words], gloss.strip()


def question(part, words):
    others = ", ".join('"%s"' % word for word in words[1:])
    return 'Define the %s "%s"%s.' % (part, words[0], " in the sense of %s" % others if others else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, help="the directory to make")
    parser.add_argument("--wordnet", default="/usr/share/wordnet", help="the directory that holds data.noun and so on")
    arguments = parser.parse_args()
    senses = []
    for suffix, part in PARTS.items():
        path = os.path.join(arguments.wordnet, "data." + suffix)
        if not os.path.isfile(path):
            sys.exit("make_wordnet_rows: no %s; it comes with the Debian package wordnet-base" % path)
        senses += [(question(part, words), gloss) for words, gloss in read_senses(path)]
    os.makedirs(arguments.out, exist_ok=True)
    rows = {"train": [], "heldout": []}
    for number, (instruction, output) in enumerate(senses):
        if number % HELD_OUT_EVERY:
            rows["train"].append({"instruction": instruction, "input": "", "output": output})
        else:
            rows["heldout"].append({"messages": [{"role": "user", "content": instruction},
                                                 {"role": "assistant", "content": output}]})
    for name, chosen in rows.items():
        path = os.path.join(arguments.out, name + ".jsonl")
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in chosen)
        os.replace(path + ".tmp", path)
        print("%s: %d rows" % (path, len(chosen)))


if __name__ == "__main__":
    main()
