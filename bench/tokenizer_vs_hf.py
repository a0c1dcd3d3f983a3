#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the speed of encode_batch with the PyPI `tokenizers` library: same texts, same threads, passes in turn.

    REFERENCE_PYTHON bench/tokenizer_vs_hf.py --bench BUILD/bench/tokenizer_bench --tokenizer DIR [--threads 2] [--passes 5]
                     [--megabytes 8]

Kinds of text: definitions of WordNet as rows of a data set, Python source, and a mix of scripts. For each kind the ids
are compared, then the fastest pass of each side is printed, by the clock and by CPU time (which other work on the machine
disturbs less). Each side is one process for all passes, so that both have warm caches after the first.
"""
import argparse
import glob
import os
import random
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time

WORDNET = "/usr/share/wordnet"
SENTENCES = ["\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430? \u0412\u0441\u0451 \u0445\u043e\u0440\u043e\u0448\u043e.", "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427\u3002",
             "\u0928\u092e\u0938\u094d\u0924\u0947, \u0906\u092a \u0915\u0948\u0938\u0947 \u0939\u0948\u0902? \u092e\u0948\u0902 \u0920\u0940\u0915 \u0939\u0942\u0901\u0964", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f",
             "\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002\u6563\u6b69\u306b\u884c\u304d\u307e\u3057\u3087\u3046\u3002", "\uc548\ub155\ud558\uc138\uc694, \uc624\ub298 \ub0a0\uc528\uac00 \uc88b\ub124\uc694.",
             "D\u00e9j\u00e0 vu: l'\u00e9t\u00e9 fut na\u00efve, gr\u00f6\u00dfe Stra\u00dfe, \u00a1ma\u00f1ana!", "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1f3\U0001f1f4", "Xin ch\u00e0o, th\u1eddi ti\u1ebft h\u00f4m nay \u0111\u1eb9p qu\u00e1."]


def wordnet_texts(limit):
    out, size = [], 0
    for name in ("data.noun", "data.verb", "data.adj", "data.adv"):
        with open(os.path.join(WORDNET, name), encoding="latin-1") as file:
            for line in file:
                if line.startswith("  ") or " | " not in line:
                    continue
                fields, gloss = line.split(" | ", 1)
                word = fields.split()[4].replace("_", " ")
                text = "<|im_start|>user\nDefine: %s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n" % (word, gloss.strip())
                out.append(text)
                size += len(text)
                if size >= limit:
                    return out
    return out


def source_texts(limit):
    out, size = [], 0
    for path in sorted(glob.glob(os.path.join(sysconfig.get_paths()["stdlib"], "**", "*.py"), recursive=True)):
        try:
            text = open(path, encoding="utf-8").read()
        except (UnicodeDecodeError, OSError):
            continue
        out.append(text)
        size += len(text)
        if size >= limit:
            break
    return out


def script_texts(limit):
    """Sentences with their words in random order, so that not every word is a known one."""
    dice, out, size = random.Random(1), [], 0
    while size < limit:
        words = " ".join(dice.sample(SENTENCES, 4)).split(" ")
        dice.shuffle(words)
        letters = list(dice.choice(SENTENCES))
        dice.shuffle(letters)
        out.append(" ".join(words) + "".join(letters))
        size += len(out[-1].encode())
    return out


class Ours:
    def __init__(self, bench, directory, texts, threads, passes, work):
        self.ids_path = os.path.join(work, "ids")
        source = os.path.join(work, "texts")
        with open(source, "wb") as file:
            for text in texts:
                data = text.encode("utf-8")
                file.write(struct.pack("<I", len(data)) + data)
        command = [bench, directory, source, "--threads", str(threads), "--repeat", str(passes), "--wait", "1", "--ids", self.ids_path]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def one_pass(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("tokenizer_vs_hf: the benchmark program ended early")
        return [float(field) for field in line.split()[:2]]

    def ids(self):
        with open(self.ids_path, "rb") as file:
            while head := file.read(4):
                count = struct.unpack("<I", head)[0]
                yield list(struct.unpack("<%di" % count, file.read(4 * count)))


def rates(size, seconds):
    """MB/s of both sides' fastest passes and how many times faster ours is."""
    ours, theirs = min(seconds["ours"]), min(seconds["theirs"])
    return size / 1e6 / ours, size / 1e6 / theirs, theirs / ours


def compare(kind, texts, arguments, tokenizer):
    size = sum(len(text.encode()) for text in texts)
    with tempfile.TemporaryDirectory() as work:
        ours = Ours(arguments.bench, arguments.tokenizer, texts, arguments.threads, arguments.passes, work)
        wall, cpu = {"ours": [], "theirs": []}, {"ours": [], "theirs": []}
        for number in range(arguments.passes):
            taken = ours.one_pass()
            wall["ours"].append(taken[0])
            cpu["ours"].append(taken[1])
            start, cpu_start = time.perf_counter(), time.process_time()
            batch = tokenizer.encode_batch(texts, add_special_tokens=False)
            wall["theirs"].append(time.perf_counter() - start)
            cpu["theirs"].append(time.process_time() - cpu_start)
            if number == 0:
                differ = sum(a != b.ids for a, b in zip(ours.ids(), batch))
    print("%-8s %6d texts %5.1f MB: %6.1f MB/s against %5.1f (ratio %5.1f), %6.1f MB per CPU second against %5.1f (ratio %5.1f), "
          "%d texts differ" % (kind, len(texts), size / 1e6, *rates(size, wall), *rates(size, cpu), differ), flush=True)
    return differ


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True, help="the program tokenizer_bench")
    parser.add_argument("--tokenizer", required=True, help="a directory with tokenizer.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=8)
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(arguments.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    from tokenizers import Tokenizer  # reads the two variables
    tokenizer = Tokenizer.from_file(os.path.join(arguments.tokenizer, "tokenizer.json"))
    limit = int(arguments.megabytes * 1e6)
    kinds = {"wordnet": wordnet_texts, "source": source_texts, "scripts": script_texts}
    if not os.path.isdir(WORDNET):
        print("wordnet skipped: no %s (Debian package wordnet-base)" % WORDNET)
        del kinds["wordnet"]
    sys.exit(1 if sum(compare(kind, make(limit), arguments, tokenizer) for kind, make in kinds.items()) else 0)


if __name__ == "__main__":
    main()
