#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokenizer with the PyPI `tokenizers` library on random texts.

    REFERENCE_PYTHON tests/golden/fuzz_tokenizer.py --bench BUILD/bench/tokenizer_bench [--tokenizer DIR ...] [--texts 3000]
                     [--seed 1]

Runs over the given directories and over small tokenizers made here: the expressions of other model families, added tokens
that strip white space or are searched in normalised text, `ignore_merges`, no normaliser. Exits 1 at the first
difference, which it prints.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
THREE_DIGITS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
BY_CASE = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
           r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
           r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
MANY = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]\^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
SCRIPTS = [r"\p{Han}+|\p{Hiragana}+|\S+|\s+"]
ADDED = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<|im_end|>", special=True, normalized=False),
         AddedToken("<think>", normalized=False), AddedToken("<|im", normalized=False)]
STRANGE = ADDED + [AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("[SEP]", rstrip=True, normalized=False),
                   AddedToken("<both>", lstrip=True, rstrip=True, normalized=False), AddedToken("caf\u00e9", normalized=True),
                   AddedToken("ab", normalized=True), AddedToken("abc", normalized=True), AddedToken("a\u0323\u0301", normalized=False)]
CORPUS = ["the small model reads a line and answers the user in one line", "what's that? It's 12345 and 3.14!", "  def f(x):\n\treturn x\n",
          "na\u00efve gr\u00f6\u00dfe \u4f60\u597d\u4e16\u754c \u0939\u093f\u0928\u094d\u0926\u0940 \u043f\u0440\u0438\u0432\u0435\u0442"] * 4

PIECES = ["'s", "'S", "'re", "'LL", "'ve", "'d", "'\u017f", "\u2019s", "'", "don't", "I'M", " ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", " \n",
          "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\u200d", "\ufeff", "\x00", "\x1f", "\x7f", "\u1680", "\u202f", "\x0b", "\x0c",
          "hello", "World", "ab", "abc", "caf\u00e9", "cafe\u0301", "A\u0323\u0301", "A\u0301\u0323", "\u00c5", "\u212b", "\u1100\u1161\u11a8", "\uac00\u11a8",
          "\u0939\u093f\u0928\u094d\u0926\u0940", "\u4f60\u597d", "\u3053\u3093\u306b\u3061\u306f", "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
          "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1f3\U0001f1f4", "\u2603\ufe0f", "\U0001f44d\U0001f3fd", "0", "42", "2024", "\u0967\u0968", "\u00bd", "\u2167",
          "<|im_start|>", "<|im_end|>", "<|im", "<think>", "</think>", "<|im_en", "<|", "<mask>", "[SEP]", "<both>", "<|endoftext|>",
          "!", "...", "?!", "==", "/", "//", "#", "\u2026", "\u2014", "{", "}", "\\", "\u0344", "\u08ca", "\u08d0", "\u0f73", "\u09c7\u09be", "\u0cc6\u0cc2\u0cd5"]


def random_character(dice, assigned):
    while True:
        top = dice.choice([0x80, 0x250, 0x1000, 0x3000, 0x10000, 0x20000, 0x110000])
        point = dice.randrange(top)
        if 0xD800 <= point < 0xE000 or (assigned and unicodedata.category(chr(point)) == "Cn"):
            continue
        return chr(point)


def random_text(dice, assigned):
    out = []
    for _ in range(dice.choice([1, 3, 10, 40])):
        kind = dice.random()
        if kind < 0.55:
            out.append(dice.choice(PIECES))
        elif kind < 0.75:
            out.append(random_character(dice, assigned) * dice.choice([1, 1, 1, 3]))
        elif kind < 0.9:
            out.append("".join(dice.choice("abcdefghijklmnopqrstuvwxyzABCXYZ") for _ in range(dice.randrange(1, 12))))
        else:
            out.append(dice.choice(PIECES) * dice.choice([2, 5, 40, 300]))
    return "".join(out)


def small_tokenizer(expressions, added, nfc=True, ignore_merges=False, gpt2=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(e), "isolated") for e in expressions]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, show_progress=False,
                                                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def whole_words(tokenizer):
    """Drops half of the merges, so that ignore_merges makes a difference."""
    data = json.loads(tokenizer.to_str())
    data["model"]["merges"] = data["model"]["merges"][::2]
    known = set(data["model"]["vocab"])
    data["model"]["merges"] = [m for m in data["model"]["merges"] if all(part in known for part in m)]
    return Tokenizer.from_str(json.dumps(data))


def variants():
    yield "qwen3 expression", small_tokenizer([QWEN3], ADDED), False
    yield "three digits", small_tokenizer([THREE_DIGITS], ADDED, nfc=False), True
    yield "by case", small_tokenizer([BY_CASE], ADDED), True
    yield "many splits", small_tokenizer(MANY, ADDED, nfc=False), True
    yield "scripts", small_tokenizer(SCRIPTS, ADDED, nfc=False), True
    yield "gpt2", small_tokenizer([], ADDED, nfc=False, gpt2=True), True
    yield "no expression", small_tokenizer([], ADDED), True
    yield "strange added tokens", small_tokenizer([QWEN3], STRANGE), False
    yield "ignore_merges", whole_words(small_tokenizer([THREE_DIGITS], ADDED, ignore_merges=True)), True


def ids_of_ours(bench, directory, texts, work):
    source, target = os.path.join(work, "texts"), os.path.join(work, "ids")
    with open(source, "wb") as file:
        for text in texts:
            data = text.encode("utf-8")
            file.write(struct.pack("<I", len(data)) + data)
    subprocess.run([bench, directory, source, "--threads", "2", "--ids", target], check=True, capture_output=True)
    out = []
    with open(target, "rb") as file:
        while head := file.read(4):
            count = struct.unpack("<I", head)[0]
            out.append(list(struct.unpack("<%di" % count, file.read(4 * count))))
    return out


def compare(name, bench, directory, tokenizer, assigned, count, seed):
    dice = random.Random("%s %d" % (name, seed))
    texts = [random_text(dice, assigned) for _ in range(count)]
    with tempfile.TemporaryDirectory() as work:
        ours = ids_of_ours(bench, directory, texts, work)
    bad = 0
    for text, got in zip(texts, ours):
        wanted = tokenizer.encode(text, add_special_tokens=False).ids
        if wanted != got:
            bad += 1
            if bad <= 3:
                first = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
                print("%s: %s\n  wanted %s\n  got    %s" % (name, ascii(text), wanted[max(0, first - 3):first + 8], got[max(0, first - 3):first + 8]))
                print("  the reference's pieces there:", [tokenizer.id_to_token(i) for i in wanted[max(0, first - 3):first + 8]])
    print("%-24s %d texts, %d bytes, %d differ" % (name, count, sum(len(t.encode()) for t in texts), bad))
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True, help="the program tokenizer_bench")
    parser.add_argument("--tokenizer", action="append", default=[], help="a directory with tokenizer.json")
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    bad = 0
    for directory in arguments.tokenizer:
        tokenizer = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        bad += compare(os.path.basename(directory.rstrip("/")), arguments.bench, directory, tokenizer, False, arguments.texts, arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        for name, tokenizer, assigned in variants():
            tokenizer.save(os.path.join(directory, "tokenizer.json"))
            bad += compare(name, arguments.bench, directory, tokenizer, assigned, arguments.texts, arguments.seed)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
