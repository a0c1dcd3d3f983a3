#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README.md and docs/cli.md say what the program does: the configuration is accepted, commands and flags are all there.

    documents_test.py EXPERTMESH
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = sys.argv.pop(1)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def flags_of(text):
    return set(re.findall(r"--[a-z][a-z-]*", text)) - {"--help"}


class Documents(unittest.TestCase):
    def test_the_readme_configuration_is_accepted(self):
        (config,) = re.findall(r"```yaml\n(.*?)```", read("README.md"), re.S)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sft.yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(config)
            code, _, error = run("sft", path, "learning_rate=5.0e-6", "--ranks", "8")
        self.assertEqual(code, 12, error)  # every key is right; the model is not on this machine
        self.assertIn("/models/Qwen3-30B-A3B", error)

    def test_every_command_is_described(self):
        described = set(re.findall(r"^## (\w+)", read("docs/cli.md"), re.M))
        listed = set(re.findall(r"^  (\w+) ", run("--help")[1], re.M))
        self.assertEqual(described, listed)

    def test_flags_are_those_of_the_program(self):
        sections = re.split(r"^## (\w+).*$", read("docs/cli.md"), flags=re.M)[1:]
        for command, text in zip(sections[::2], sections[1::2]):
            code, output, _ = run(command, "--help")
            self.assertEqual(code, 0)
            self.assertEqual(flags_of(text), flags_of(output), command)
            self.assertIn("Example: expertmesh " + command, output)

    def test_lists_of_the_readme_work(self):
        (names,) = re.findall(r"expertmesh list ([\w|]+)", read("README.md"))
        for name in names.split("|"):
            code, output, error = run("list", name)
            self.assertEqual(code, 0, error)
            self.assertGreater(len(output.splitlines()), 1, name)

    def test_log_keys_are_those_of_the_program(self):
        (line,) = [line for line in read("docs/cli.md").splitlines() if line.startswith("| `trainer_log.jsonl`")]
        written = read("src/train/run_report.cc")
        for key in re.findall(r"`([a-z_]+)`", line.split("|")[2])[1:]:
            self.assertIn('"%s"' % key, written)


if __name__ == "__main__":
    unittest.main()
