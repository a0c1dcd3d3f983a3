#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every file of this folder through the built program, as a user would meet it, against expected.json.

    tests/cases/run_cases.py EXPERTMESH [TEXT ...]      only the tests whose names hold one of the texts

The rooms' own tests read the same files without the program; here it is the command line, the exit code, what is printed and what
is left behind. waiting.json lists what waits for later work: it is checked that these are refused, by name.
"""
import glob
import itertools
import json
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import product  # noqa: E402
import tensors  # noqa: E402
from suite import Suite  # noqa: E402

SECONDS, RSS_MIB = 10, 64  # limits of every case that names none


def load_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# --- what is expected of a message ---

def check_message(run, contains, own_path):
    """own_path, the file's as it was given, counts only for entries that name the file."""
    name = os.path.basename(own_path)
    message = run.err.lower()
    bare = message.replace(own_path.lower(), "").replace(name.lower(), "")

    def holds(entry):
        return entry.lower() in (message if name in entry else bare)

    for entry in contains:
        if not any(holds(choice) for choice in (entry if isinstance(entry, list) else [entry])):
            run.fail("the message does not hold %s" % json.dumps(entry))


def check_error(run, error, own_path, limits=None):
    codes = error["exit"]
    run.expect_code(*(codes if isinstance(codes, list) else [codes]))
    check_message(run, error["contains"], own_path)
    check_limits(run, limits or {})


def check_limits(run, limits):
    seconds = limits.get("seconds", SECONDS)
    if run.cpu_seconds > seconds:
        run.fail("took %.1f s of processor time, not %d" % (run.cpu_seconds, seconds))
    run.expect_within(max(seconds, SECONDS))
    if run.rss_mib > BASE.rss_mib + limits.get("rss_mib", RSS_MIB):
        run.fail("took %d MiB; an accepted file takes %d" % (run.rss_mib, BASE.rss_mib))


def check_nothing_left(run, output_dir):
    """A run that was refused leaves no model and no part of one."""
    for path in glob.glob(os.path.join(CASES, output_dir, "**"), recursive=True):
        if path.endswith((".safetensors", ".tmp")) or os.path.basename(path) == "config.json":
            run.fail("was refused, but left %s" % path)


def check_number(run, what, got, wanted, tolerance):
    if not abs(got - wanted) <= tolerance * max(1.0, abs(wanted)):
        run.fail("%s is %.9g, not %.9g" % (what, got, wanted))


# --- config ---

def resolved(output_dir):
    """Dotted keys of config.resolved.yaml with their values; the file has one key a line and sections one level deep."""
    values, section = {}, ""
    with open(os.path.join(CASES, output_dir, "config.resolved.yaml"), encoding="utf-8") as file:
        for line in file:
            if not line.strip() or line.startswith("#"):
                continue
            key, _, text = line.rstrip("\n").partition(":")
            if not line.startswith(" "):
                section = key + "." if not text.strip() else ""
            if text.strip():
                values[(section if line.startswith(" ") else "") + key.strip()] = text.strip()
    return values


def is_same_value(text, wanted):
    if isinstance(wanted, bool):
        return text == ("true" if wanted else "false")
    if isinstance(wanted, (int, float)):
        try:
            return float(text) == float(wanted)
        except ValueError:
            return False
    if isinstance(wanted, list):
        return [float(part) for part in text.strip("[]").split(",")] == [float(number) for number in wanted]
    return text.strip("\"'") == wanted


def table(run):
    """The start table: row name -> text. The names of rows do not repeat."""
    rows = {}
    for line in run.out.splitlines():
        words = [word for word in line.split("  ") if word.strip()]
        if len(words) >= 2:
            rows[words[-2].strip()] = words[-1].strip()
    return rows


def derived(run, values):
    """What follows from the configuration, as the start table and the resolved configuration show it."""
    rows = table(run)
    found = {}
    for row in ("data", "expert"):
        for part in rows[row].split(" x "):
            axis, size = part.split()
            found[axis + "_size"] = int(size)
    found["dp_size"] = found.pop("dp_size")
    found["num_micro_batch"] = int(rows["steps"].split("(")[1].split()[0])
    found["global_batch_size"] = int(rows["steps"].split(", ")[1].split()[0])
    found["experts_per_rank"] = int(rows["experts"].split(",")[0]) // found["ep_size"]
    for name, key in (("optimizer", "optim_config.name"), ("betas", "optim_config.betas"), ("eps", "optim_config.eps"),
                      ("weight_decay", "optim_config.weight_decay"), ("lr_schedule", "lr_scheduler_config.name")):
        found[name] = values[key]
    return found


def check_ok_config(name, given, ok, output_dir):
    path = "config/" + name
    run = EXPERTMESH([given.get("command", "sft"), path] + given.get("overrides", []) + ["output_dir=" + output_dir],
                     ranks=given.get("world", 4))
    run.expect_code(0)
    check_limits(run, ok.get("limits", {"rss_mib": 512}))
    values = resolved(output_dir)
    for key, wanted in ok.get("values", {}).items():
        if not is_same_value(values.get(key, ""), wanted):
            run.fail("%s is %s in config.resolved.yaml, not %s" % (key, values.get(key), wanted))
    if "derived" in ok:
        found = derived(run, values)
        for key, wanted in ok["derived"].items():
            if not is_same_value(str(found[key]), wanted):
                run.fail("%s is %s, not %s" % (key, found[key], wanted))
    for word in ok.get("warns", []):
        if not any("warn" in line and word in line for line in run.err.splitlines()):
            run.fail("no warning holds %r" % word)
    check_log(run, output_dir, ok)
    # The resolved configuration can be run again, with the same result.
    again = EXPERTMESH(["sft", output_dir + "/config.resolved.yaml", "output_dir=" + output_dir + "_again"],
                       ranks=given.get("world", 4)).expect_code(0)
    if [r["loss"] for r in tensors.read_log(os.path.join(CASES, output_dir))] != [
            r["loss"] for r in tensors.read_log(os.path.join(CASES, output_dir + "_again"))]:
        again.fail("the resolved configuration gives other losses")


def check_log(run, output_dir, ok):
    for column, wanted in ok.get("log", {}).items():
        got = [record[column] for record in tensors.read_log(os.path.join(CASES, output_dir))]
        if len(got) != len(wanted):
            run.fail("%d records of %s, not %d" % (len(got), column, len(wanted)))
        for step, (a, b) in enumerate(zip(got, wanted), 1):
            check_number(run, "%s of step %d" % (column, step), a, b, ok["tolerance"])


def test_config(name, entry):
    given = entry.get("given", {})
    output_dir = "made/config/" + name
    if "ok" in entry:
        return check_ok_config(name, given, entry["ok"], output_dir)
    # Positions in the message would move with an override of ours, so the file's own output_dir stays.
    path = "config/" + name
    run = EXPERTMESH([given.get("command", "sft"), path] + given.get("overrides", []), ranks=given.get("world", 4))
    check_error(run, entry["error"], path, entry.get("limits"))
    check_nothing_left(run, "out")


# --- the traces, on every mesh ---

TRACES = [(1, 1, ["dist_config=null"]), (1, 1, []), (1, 2, []), (1, 4, []), (2, 1, ["dist_config.ep_size=1"]), (2, 2, ["dist_config.ep_size=1"]),
          (2, 1, ["dist_config.ep_size=2"]), (2, 2, ["dist_config.ep_size=2"]), (2, 2, ["dist_config=null"]), (4, 1, ["dist_config.ep_size=1"]),
          (4, 1, ["dist_config.ep_size=2"]), (4, 1, ["dist_config.ep_size=4"]), (4, 1, ["mp_replicate_size=2"]),
          (4, 1, ["dist_config.fsdp_implementation=custom"]), (4, 1, ["enable_activation_checkpointing=false"])]


def test_trace(model, optimizer, ranks, micro_batch, overrides, number):
    entry = load_json(os.path.join(HERE, "values", "expected.json"))["trace_%s.json" % model]
    expected, tolerance = entry["ok"], entry["tolerance"]
    output_dir = "made/trace/%s_%s_%d" % (model, optimizer, number)
    if ranks == 1 and not overrides:
        overrides = ["dist_config.ep_size=1"]
    run = EXPERTMESH(["sft", "config/run_%s_%s.yaml" % (model, optimizer), "micro_batch_size=%d" % micro_batch,
                      "output_dir=" + output_dir] + overrides, ranks=ranks).expect_code(0)
    wanted = expected[optimizer]
    check_log(run, output_dir, {"log": {key: wanted[key] for key in ("loss", "grad_norm")}, "tolerance": tolerance})
    model = tensors.read_model(os.path.join(CASES, output_dir))
    for name, sums in wanted["probe"].items():
        values = probe_values(model, name)
        for what, got, sum_wanted in (("sum", sum(values), sums[0]), ("sum of squares", sum(v * v for v in values), sums[1])):
            check_number(run, "the %s of %s" % (what, name), got, sum_wanted, tolerance)


def probe_values(model, name):
    """A tensor's values; experts stand one by one in the file where the reference has them in one tensor."""
    if name in model:
        return tensors.floats(model[name])
    stem, _, projection = name.rpartition(".")
    return [value for tensor in sorted(model) if tensor.startswith(stem + ".") and tensor.endswith(projection + ".weight")
            for value in tensors.floats(model[tensor])]


# --- data ---

def dataset_for(name, converter):
    """Row files are named directly where no converter is asked for, else through a dataset description."""
    if not converter:
        return "data/" + name
    path = os.path.join("generated", name + ".yaml")
    with open(os.path.join(CASES, path), "w", encoding="utf-8") as file:
        file.write("rows:\n  path: data/%s\n  source: local\n  converter: %s\n" % (name, converter))
    return path


def run_data(name, given, markup, output_dir):
    arguments = ["model=" + given.get("model", "generated/model"), "train_dataset=" + dataset_for(name, given.get("converter")),
                 "output_dir=" + output_dir, "max_steps=1", "micro_batch_size=1", "bf16=false", "shuffle=false"]
    if markup:
        arguments.append("chat_markup=" + markup)
    if given.get("skip_bad_rows"):
        arguments.append("skip_bad_rows=true")
    return EXPERTMESH([given.get("command", "sft")] + arguments, ranks=1)


def check_ok_data(name, run, ok, output_dir):
    run.expect_code(0)
    check_limits(run, {"rss_mib": 512})
    words = table(run)["rows"].replace(",", "").split()
    if "rows" in ok and (int(words[0]), int(words[1])) != (ok["rows"], ok["samples"]):
        run.fail("%s rows and %s samples, not %d and %d" % (words[0], words[1], ok["rows"], ok["samples"]))
    if "skipped_lines" in ok:
        if table(run).get("bad rows") != "%d skipped" % len(ok["skipped_lines"]):
            run.fail("the table does not count %d skipped rows" % len(ok["skipped_lines"]))
        run.expect(*["%s:%d" % (name, line) for line in ok["skipped_lines"]])
    loss = tensors.read_log(os.path.join(CASES, output_dir))[0]["loss"]
    if not 0 < loss < 20:
        run.fail("the loss of the first step is %s" % loss)


def test_data(name, entry):
    given = entry.get("given", {})
    markups = given.get("markup", "qwen3" if given.get("converter") != "tokenized" else None)
    for markup in markups if isinstance(markups, list) else [markups]:
        output_dir = "made/data/%s.%s" % (name, markup)
        run = run_data(name, given, markup, output_dir)
        if "ok" in entry:
            check_ok_data(name, run, entry["ok"], output_dir)
        else:
            check_error(run, entry["error"], "data/" + name, entry.get("limits"))
            check_nothing_left(run, output_dir)
    for markup, outcome in entry.get("ok", {}).get("render", {}).items():
        run = run_data(name, given, markup, "made/data/%s.%s" % (name, markup))
        if outcome == "ok":
            run.expect_code(0)
        else:
            check_error(run, outcome, "data/" + name)


def test_skip_bad_rows_is_needed():
    """The accepted file with two bad rows is an error without the key."""
    run = run_data("ok_skip_bad_rows.jsonl", {"converter": "alpaca"}, "qwen3", "made/data/not_skipped")
    check_error(run, {"exit": 11, "contains": ["ok_skip_bad_rows.jsonl:2"]}, "data/ok_skip_bad_rows.jsonl")


# --- weights ---

def score(model, rows="generated/ids.jsonl", output=None, ranks=1, arguments=()):
    return EXPERTMESH(["score", "--model", model, "--input", rows] + (["--output", output] if output else []) + list(arguments),
                      ranks=ranks)


def write_rows(name, row):
    with open(os.path.join(CASES, "generated", name), "w", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return "generated/" + name


def test_model(name, entry):
    path = "weights/" + name
    if "error" in entry:
        for arguments in (["score", "--model", path, "--input", "generated/ids.jsonl"],
                          ["sft", "model=" + path, "train_dataset=data/tokens.yaml", "output_dir=made/" + name, "max_steps=1"]):
            for ranks in (1, 2):
                run = EXPERTMESH(arguments, ranks=ranks)
                check_error(run, entry["error"], path, entry.get("limits"))
                check_nothing_left(run, "made/" + name)
        return
    ok = entry["ok"]
    stem = name.replace("/", "_")
    rows = write_rows(stem + ".jsonl", {"input_ids": ok["input_ids"]})
    for ranks, arguments in ((1, []), (2, ["dist_config.name=fsdpturbo", "dist_config.ep_size=2"]), (2, ["dist_config.name=fsdp2"])):
        output = "generated/%s.scores.jsonl" % stem
        run = score(path, rows, output, ranks, arguments).expect_code(0)
        got = load_json(os.path.join(CASES, output))["logprobs"]
        if len(got) != len(ok["logprobs"]):
            run.fail("%d log-probabilities, not %d" % (len(got), len(ok["logprobs"])))
        for i, (a, b) in enumerate(zip(got, ok["logprobs"])):
            check_number(run, "log-probability %d" % i, a, b, ok["tolerance"])
    if "save_unchanged" in ok:
        check_save_unchanged(path, stem)


def check_save_unchanged(path, stem):
    """With a learning rate of 0 the saved tensors are the source's to the byte, on any mesh."""
    rows = write_rows(stem + ".train.jsonl", {"input_ids": [1, 5, 2, 7], "labels": [-100, 5, 2, 7]})
    dataset = "generated/%s.yaml" % stem
    with open(os.path.join(CASES, dataset), "w", encoding="utf-8") as file:
        file.write("rows:\n  path: %s\n  source: local\n  converter: tokenized\n  size: 4\n" % rows)
    source = tensors.read_model(os.path.join(CASES, path))
    for ranks, extra in ((1, []), (2, ["dist_config.name=fsdpturbo", "dist_config.ep_size=2"])):
        output_dir = "made/unchanged/%s_%d" % (stem, ranks)
        run = EXPERTMESH(["sft", "model=" + path, "train_dataset=" + dataset, "output_dir=" + output_dir, "max_steps=2",
                          "learning_rate=0", "bf16=false"] + extra, ranks=ranks).expect_code(0)
        saved = tensors.read_model(os.path.join(CASES, output_dir))
        if saved != source:
            names = sorted(set(saved) ^ set(source)) or sorted(name for name in saved if saved[name] != source[name])
            run.fail("saved tensors differ from the source: %s" % ", ".join(names[:5]))


def directory_with(stem, files):
    """A model directory made of the given files: name in it -> path under the cases."""
    directory = os.path.join("generated", stem)
    os.makedirs(os.path.join(CASES, directory))
    for name, path in files.items():
        shutil.copyfile(os.path.join(CASES, path), os.path.join(CASES, directory, name))
    return directory


def test_header(name, entry):
    """As model.safetensors beside ok_split's config.json."""
    directory = directory_with(name.replace("/", "_"), {"config.json": "weights/models/ok_split/config.json",
                                                         "model.safetensors": "weights/" + name})
    run = score(directory)
    if "error" in entry:
        return check_error(run, entry["error"], directory + "/model.safetensors", entry.get("limits"))
    # A sound file, only not this model's: it is its tensors that are complained about.
    run.expect_code(product.MODEL).expect("missing", "model.embed_tokens.weight")


def test_model_config(name, entry):
    stem = name.replace("/", "_")
    path = "weights/" + name
    if "error" in entry:
        directory = directory_with(stem, {"config.json": path, "model.safetensors": "weights/models/ok_split/model.safetensors"})
        check_error(score(directory), entry["error"], directory + "/config.json")
        made = EXPERTMESH(["init", "--config", path, "--out", "generated/%s_made" % stem])
        check_error(made, entry["error"], path)
        if os.path.exists(os.path.join(CASES, "generated", stem + "_made")):
            made.fail("was refused, but left a directory")
        return
    directory = "generated/%s_made" % stem
    EXPERTMESH(["init", "--config", path, "--dtype", "fp32", "--out", directory]).expect_code(0)
    run = score(directory).expect_code(0)
    names = tensors.read_model(os.path.join(CASES, directory))
    for layers, module in (("moe_layers", "mlp.gate.weight"), ("dense_layers", "mlp.gate_proj.weight")):
        for layer in entry["ok"].get(layers, []):
            if "model.layers.%d.%s" % (layer, module) not in names:
                run.fail("layer %d has no %s" % (layer, module))


# --- what waits ---

def test_waiting(name, entry, wait):
    """Fails as soon as the feature is built: then the row leaves waiting.json."""
    given = entry.get("given", {})
    folder, _, rest = name.partition("/")
    if folder == "config":
        run = EXPERTMESH([given.get("command", "sft"), name] + given.get("overrides", []), ranks=given.get("world", 4))
    elif folder == "data":
        run = run_data(rest, given, "qwen3", "made/waiting/" + rest)
    elif rest.startswith("models/"):
        run = score(name)
    else:
        run = EXPERTMESH(["init", "--config", name, "--out", "generated/waiting_" + os.path.basename(name)])
    if run.code == 0 or "error" in entry and is_as_expected(run, entry["error"], name):
        run.fail("behaves as wanted: remove it from waiting.json")
    check_error(run, wait, name)


def is_as_expected(run, error, own_path):
    try:
        check_error(run, error, own_path)
        return True
    except product.Failure:
        return False


# --- all of it ---

def add_folder(suite, folder, waiting):
    for name, entry in load_json(os.path.join(HERE, folder, "expected.json")).items():
        full = folder + "/" + name
        if full in waiting:
            suite.add_named("waiting/" + full, test_waiting, full, entry, waiting[full])
        elif folder == "config":
            suite.add_named(full, test_config, name, entry)
        elif folder == "data":
            suite.add_named(full, test_data, name, entry)
        elif name.startswith("models/"):
            suite.add_named(full, test_model, name, entry)
        elif name.startswith("headers/"):
            suite.add_named(full, test_header, name, entry)
        else:
            suite.add_named(full, test_model_config, name, entry)


def test_waiting_names_files(waiting):
    for name in waiting:
        folder, _, rest = name.partition("/")
        if rest not in load_json(os.path.join(HERE, folder, "expected.json")):
            raise product.Failure("waiting.json names %s, which no expected.json has" % name)


def prepare():
    """What the cases need beside their files: a model for rows of text, and one row of ids."""
    os.makedirs(os.path.join(CASES, "generated"))
    config = load_json(os.path.join(CASES, "weights/models/nano_qwen3/config.json"))
    config.update(vocab_size=512, max_position_embeddings=2048)
    with open(os.path.join(CASES, "generated/config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    EXPERTMESH(["init", "--config", "generated/config.json", "--tokenizer", "render/tokenizer", "--dtype", "fp32", "--out",
                "generated/model"]).expect_code(0)
    write_rows("ids.jsonl", {"input_ids": [1, 5, 2, 7]})
    return score("weights/models/ok_split").expect_code(0)


def main():
    global CASES, EXPERTMESH, BASE
    waiting = load_json(os.path.join(HERE, "waiting.json"))
    with tempfile.TemporaryDirectory(prefix="expertmesh_cases_") as folder:
        CASES = os.path.join(folder, "cases")
        shutil.copytree(HERE, CASES, copy_function=shutil.copyfile)
        for directory, _, _ in os.walk(CASES):
            os.chmod(directory, 0o755)
        EXPERTMESH = product.Program(sys.argv[1], CASES)
        BASE = prepare()
        suite = Suite()
        for cases_folder in ("config", "data", "weights"):
            add_folder(suite, cases_folder, waiting)
        suite.add_named("data/skip_bad_rows_is_needed", test_skip_bad_rows_is_needed)
        suite.add_named("waiting.json", test_waiting_names_files, waiting)
        for model, optimizer in itertools.product(("nano_qwen3", "nano_qwen3_5"), ("sgd", "adamw")):
            for number, (ranks, micro_batch, overrides) in enumerate(TRACES):
                name = "trace/%s_%s_ranks%d_micro%d_%s" % (model, optimizer, ranks, micro_batch, "_".join(overrides))
                suite.add_named(name, test_trace, model, optimizer, ranks, micro_batch, overrides, number)
        return suite.run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
