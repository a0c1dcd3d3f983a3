#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/chat_templates/*.jinja, run as transformers runs templates, give what the markups give: for every dialogue of
tests/cases/render, cut after each turn, with and without the opening of an answer, thinking or not.

    tests/setup/chat_template_test.py [TEXT ...]

Needs Jinja2; without it the test says so and is skipped (77).
"""
import glob
import json
import os
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(TESTS, "support"), os.path.join(TESTS, "cases", "render")]
try:
    import jinja2
    import jinja2.sandbox
    import make_vectors
except ImportError as error:
    print("chat_template_test: skipped, %s" % error)
    sys.exit(77)
from product import Failure  # noqa: E402
from suite import Suite  # noqa: E402

TEMPLATES = os.path.join(os.path.dirname(TESTS), "scripts", "chat_templates")


class TemplateError(Exception):
    pass


def refuse(message):
    raise TemplateError(message)


def load_template(path):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = refuse
    with open(path, encoding="ascii") as file:
        return environment.from_string(file.read())


def as_transformers(message):
    """A message of make_vectors as the keys that templates know."""
    out = {"role": message["role"], "content": message["text"]}
    if message["reasoning"]:
        out["reasoning_content"] = message["reasoning"]
    if message["calls"]:
        out["tool_calls"] = [{"type": "function", "function": call} for call in message["calls"]]
    return out


def rendered(function):
    """The text, or nothing where it is refused."""
    try:
        return function()
    except (make_vectors.RenderError, TemplateError):
        return None


def compare(template, markup, messages, tools, **choices):
    wanted = rendered(lambda: make_vectors.render(markup, messages, tools, choices["prompt"], choices["thinking"]))
    keys = {} if choices["thinking"] is None else {"enable_thinking": choices["thinking"]}
    got = rendered(lambda: template.render(messages=[as_transformers(m) for m in messages], tools=tools,
                                           add_generation_prompt=choices["prompt"], **keys))
    if got != wanted:
        raise Failure("%d turns, %s\nwanted %r\ngot    %r" % (len(messages), choices, wanted, got))
    return wanted is not None


def load_dialogue(sample):
    """Its messages and tools; nothing where they cannot even be read."""
    try:
        messages, safe = make_vectors._plain(sample["messages"])
        tools = json.loads(safe(sample["tools"])) if sample.get("tools") else None
    except (make_vectors.RenderError, json.JSONDecodeError):
        return None, None
    return messages, tools if tools is None or isinstance(tools, list) else [tools]


def test_dialogues(template, markup, samples):
    count = 0
    for sample in samples:
        messages, tools = load_dialogue(sample)
        for cut in range(1, len(messages or []) + 1):
            if messages[0]["role"] == "tool":
                continue  # no dialogue starts with a result
            for prompt in (False, True):
                for thinking in (None, False, True):
                    try:
                        count += compare(template, markup, messages[:cut], tools, prompt=prompt, thinking=thinking)
                    except Failure as failure:
                        raise Failure("dialogue %s, %s" % (sample["id"], failure)) from failure
    if count < 150:
        raise Failure("only %d texts were compared" % count)


def test_content_in_parts(template):
    """Text in parts, as clients of multimodal models send it, and an answer that is a call alone."""
    parts = [{"role": "user", "content": [{"type": "text", "text": " a"}, {"type": "text", "text": "b "}]}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"n": 1.5, "flag": True}}}]}
    got = template.render(messages=parts + [call], tools=None, add_generation_prompt=False)
    wanted = ("<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<tool_call>\n<function=f>\n<parameter=n>\n1.5\n"
              "</parameter>\n<parameter=flag>\nTrue\n</parameter>\n</function>\n</tool_call><|im_end|>\n")
    if got != wanted:
        raise Failure("wanted %r\ngot    %r" % (wanted, got))
    if rendered(lambda: template.render(messages=[{"role": "user", "content": [{"type": "image"}]}])) is not None:
        raise Failure("an image is accepted")


def main():
    with open(os.path.join(make_vectors.HERE, "dialogues.json"), encoding="utf-8") as file:
        samples = json.load(file)
    suite = Suite()
    for path in sorted(glob.glob(os.path.join(TEMPLATES, "*.jinja"))):
        markup, template = os.path.basename(path).removesuffix(".jinja"), load_template(path)
        suite.add_named(markup + "_dialogues", test_dialogues, template, markup, samples)
        if markup == "qwen3_5":
            suite.add_named(markup + "_parts", test_content_in_parts, template)
    return suite.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
