#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times generation against Hugging Face transformers on the bench-size models of both families, turn about on the same threads.

  bench/decode_compare.py EXPERTMESH [--rounds N] [--threads N] [--prompt N] [--tokens N] [--batch N ...] [--page FILE]
                          [--families NAME ...] [key=value ...]

Run it with the python that tests/golden/setup_reference.sh prints. Both sides continue the same prompts of random ids greedily in bf16
with a key-value cache (and delta and convolution states), and there is no end token, so all rows are equally long. Timed apart are
the prompt (until the first new token of every row) and decoding (all tokens after the first). Of transformers' ways to run experts
the fastest is taken, for each family, batch and of the two. --page writes the result as Markdown; `key=value` are keys of ours.
"""
import argparse
import gc
import os
import re
import statistics
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import peer
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

sys.path.insert(0, os.path.dirname(peer.HF_REF))
import hf_ref  # noqa: E402

FAMILIES = {"qwen3_moe": "Qwen3-MoE", "qwen3_5_moe_text": "Qwen3.5-MoE"}
EXPERTS = ["grouped_mm", "batched_mm", "eager"]
GOAL = 3.0
SUMMARY = re.compile(r"prompt tokens at ([0-9.]+)/s, [0-9]+ new tokens at ([0-9.]+)/s")


class Clock(StoppingCriteria):
    """Notes when each new token was there and calls `after_first` once; stops nothing."""

    def __init__(self, after_first):
        self.times, self.after_first = [], after_first

    def __call__(self, input_ids, scores, **_):
        self.times.append(time.perf_counter())
        if len(self.times) == 1:
            self.after_first()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Transformers:
    def __init__(self, path, threads):
        torch.set_num_threads(threads)
        self.model = hf_ref.load(path, torch.bfloat16).eval()

    def run(self, prompts, new_tokens, experts):
        """(tokens/s of the prompt, tokens/s of decoding); `experts` names how each of the two runs experts."""
        ids, clock = torch.tensor(prompts), Clock(lambda: self.model.set_experts_implementation(experts[1]))
        self.model.set_experts_implementation(experts[0])
        start = time.perf_counter()
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False,
                                  use_cache=True, pad_token_id=0, stopping_criteria=StoppingCriteriaList([clock]))
        assert out.shape[1] == ids.shape[1] + new_tokens and len(clock.times) == new_tokens
        decoded = len(prompts) * (new_tokens - 1)
        return ids.numel() / (clock.times[0] - start), decoded / (clock.times[-1] - clock.times[0])

    def fastest_experts(self, prompts, new_tokens):
        """For the prompt and for decoding. Also warms everything up."""
        rates = {name: [max(pair) for pair in zip(*(self.run(prompts, new_tokens, (name, name)) for _ in range(2)))]
                 for name in EXPERTS}
        return tuple(max(EXPERTS, key=lambda name: rates[name][which]) for which in (0, 1))


class Ours:
    def __init__(self, program, path, threads, overrides, folder):
        self.command = [program, "generate", "--model", path, "--greedy", "--bf16", "true", "--ranks", "1",
                        "--threads-per-rank", str(threads), *overrides]
        self.folder = folder

    def run(self, prompts, new_tokens):
        source, target = (os.path.join(self.folder, name) for name in ("prompts.jsonl", "answers.jsonl"))
        peer.write_jsonl(source, [dict(input_ids=ids) for ids in prompts])
        text, _ = peer.run([*self.command, "--input", source, "--output", target, "--batch", str(len(prompts)),
                            "--max-new-tokens", str(new_tokens)])
        found = SUMMARY.search(text)
        if not found:
            sys.exit("decode_compare: no closing line with the two rates in:\n" + text)
        return float(found[1]), float(found[2])


def compare(name, arguments, folder):
    """{batch: {"experts": names, "hf": [(prompt, decode)], "ours": [...]}}"""
    path = peer.make_model(folder, name, "bench")
    vocab = hf_ref.SIZES[name]["bench"]["vocab_size"]
    theirs = Transformers(path, arguments.threads)
    ours = Ours(arguments.expertmesh, path, arguments.threads, arguments.overrides, folder)
    result = {}
    for batch in arguments.batch:
        prompts = peer.random_ids(batch, batch, arguments.prompt, vocab)
        experts = theirs.fastest_experts(prompts, min(arguments.tokens, 8))
        result[batch] = {"experts": experts, "hf": [], "ours": []}
        for number in range(arguments.rounds):
            result[batch]["hf"].append(theirs.run(prompts, arguments.tokens, experts))
            result[batch]["ours"].append(ours.run(prompts, arguments.tokens))
            print("%s, batch %d, round %d: prompt %.0f tokens/s against %.0f (%s experts), decoding %.1f against %.1f (%s)" % (
                FAMILIES[name], batch, number + 1, result[batch]["ours"][-1][0], result[batch]["hf"][-1][0], experts[0],
                result[batch]["ours"][-1][1], result[batch]["hf"][-1][1], experts[1]), flush=True)
    del theirs
    gc.collect()
    return result


def spread(runs, which, digits):
    """Median and range of one of the two rates."""
    values = [run[which] for run in runs]
    return "%.*f (%.*f to %.*f)" % (digits, statistics.median(values), digits, min(values), digits, max(values))


def ratio(runs, which):
    return statistics.median(run[which] for run in runs["ours"]) / statistics.median(run[which] for run in runs["hf"])


def page_of(results, arguments):
    lines = peer.page_head("Generation against Hugging Face transformers", arguments.expertmesh) + [
        "* Command: `bench/decode_compare.py build/release/expertmesh --rounds %d --threads %d --prompt %d --tokens %d --batch %s`." % (
            arguments.rounds, arguments.threads, arguments.prompt, arguments.tokens, " ".join(map(str, arguments.batch))),
        "* Models: bench size of `hf_ref.py` (hidden 512, 8 layers, 64 experts, top-8, vocabulary 151,936, tied), random weights, bf16.",
        "* Work: greedy, prompts of %d random tokens, %d new ones, cache on both sides; %d threads each." % (
            arguments.prompt, arguments.tokens, arguments.threads),
        "* Medians (smallest to largest) of %d interleaved rounds." % arguments.rounds,
        "* Peer: %s, `generate()`, SDPA attention, the experts that are fastest here; warm." % peer.PEER,
        "* Settings of ours: one rank%s." % "".join(", " + word for word in arguments.overrides)]
    for title, which, digits in (("Decoding, tokens/s", 1, 1), ("Prompt, tokens/s", 0, 0)):
        lines += ["", "## " + title, "", "| model | batch | ours | transformers (experts) | ratio |", "|---|---|---|---|---|"]
        for name, batches in results.items():
            for batch, runs in batches.items():
                lines.append("| %s | %d | %s | %s (%s) | %.1fx |" % (
                    FAMILIES[name], batch, spread(runs["ours"], which, digits), spread(runs["hf"], which, digits),
                    runs["experts"][which], ratio(runs, which)))
    worst = min(ratio(runs, 1) for batches in results.values() for runs in batches.values())
    lines += ["", "Goal for decoding: %.1fx. The smallest ratio is %.1fx." % (GOAL, worst), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("expertmesh", help="the program")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="keys of our configuration")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=128, metavar="N", help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="new tokens")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--page", help="write the result as Markdown")
    arguments = parser.parse_intermixed_args()
    if arguments.tokens < 2:
        parser.error("--tokens must be 2 or more: decoding is timed from the first to the last")
    with tempfile.TemporaryDirectory() as folder:
        results = {name: compare(name, arguments, folder) for name in arguments.families}
    peer.publish(page_of(results, arguments), arguments.page)


if __name__ == "__main__":
    main()
