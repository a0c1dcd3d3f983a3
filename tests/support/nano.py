# SPDX-License-Identifier: Apache-2.0
"""A training run that takes milliseconds a step: the nano model and the sixteen rows of tests/cases."""
import os
import shutil

CASES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cases")


def make_folder(folder):
    """Model and rows, writable, under the names that arguments() uses."""
    shutil.copytree(os.path.join(CASES, "weights/models/nano_qwen3"), os.path.join(folder, "model"), copy_function=shutil.copyfile)
    os.chmod(os.path.join(folder, "model"), 0o755)
    os.makedirs(os.path.join(folder, "data"))
    for name in ("tokens.jsonl", "tokens.yaml"):
        shutil.copyfile(os.path.join(CASES, "data", name), os.path.join(folder, "data", name))


def arguments(output_dir, *overrides, steps=4):
    """fp32, expert parallel where `overrides` say so; one sample a rank and step."""
    return ["sft", "model=model", "train_dataset=data/tokens.yaml", "output_dir=" + output_dir, "max_steps=%d" % steps, "bf16=false",
            "learning_rate=0.01", "micro_batch_size=1"] + list(overrides)


def expert_parallel(ep):
    return ["dist_config.name=fsdpturbo", "dist_config.ep_size=%d" % ep]
