# SPDX-License-Identifier: Apache-2.0
"""What the comparisons with Hugging Face transformers share: running programs, making models, and the head of a result page."""
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HF_REF = os.path.join(ROOT, "tests", "golden", "hf_ref.py")
PEER = "transformers 5.24.0 on torch 2.11.0"


def run(command, **environment):
    """Output and peak resident memory in MiB of a program that must succeed."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        sys.exit("%s: %s\n%s\nexit code %d" % (os.path.basename(sys.argv[0]), " ".join(command), text, process.returncode))
    return text, usage.ru_maxrss // 1024


def make_model(folder, kind, size):
    """A bf16 model with random weights."""
    out = os.path.join(folder, kind + "_" + size)
    run([sys.executable, HF_REF, "make", kind, out, "--size", size, "--dtype", "bfloat16"])
    return out


def random_ids(seed, count, tokens, vocab):
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(tokens)] for _ in range(count)]


def write_jsonl(path, rows):
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def cpu_name():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def page_head(title, program):
    """First lines of a result page: title, the script as it was called, hardware, build."""
    script = os.path.relpath(os.path.abspath(sys.argv[0]), ROOT)
    return ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "# " + title, "",
            "Made by `%s` on %s." % (script, time.strftime("%Y-%m-%d")), "",
            "* Hardware: %s, %d cores used." % (cpu_name(), os.cpu_count()),
            "* Build: %s." % run([program, "version"])[0].splitlines()[0]]


def publish(page, path):
    """Prints a result page, and writes it where a path is given."""
    print("\n" + page)
    if path:
        with open(path, "w") as file:
            file.write(page)
