#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs with `profile: true`: the trace is whole and nests, the table adds up, and the training is the same to the bit.

    tests/profile/profile_test.py EXPERTMESH [TEXT ...]
"""
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import nano  # noqa: E402
import product  # noqa: E402
import tensors  # noqa: E402
from product import CONFIG, OK, USAGE, Failure, finish_all  # noqa: E402
from suite import Suite  # noqa: E402

STEPS = 4
MESH = nano.expert_parallel(2) + ["global_batch_size=8"]
SAME = ("step", "loss", "grad_norm", "learning_rate", "tokens_seen")


def path(*parts):
    return os.path.join(EXPERTMESH.folder, *parts)


def read_trace(directory):
    """rank -> lane -> spans (begin, end, name, category), in nanoseconds."""
    with open(path(directory, "trace.json"), encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    ranks = {}
    for event in events:
        if event["ph"] != "X":
            continue
        begin = round(event["ts"] * 1000)
        span = (begin, begin + round(event["dur"] * 1000), event["name"], event["cat"])
        ranks.setdefault(event["pid"], {}).setdefault((names[event["pid"], event["tid"]], event["tid"]), []).append(span)
    return ranks


def check_nesting(spans, where):
    """Two spans of a lane are one inside the other, or apart."""
    ends = []
    for begin, end, name, _ in sorted(spans, key=lambda span: (span[0], -span[1])):
        if end < begin:
            raise Failure("%s: %s ends before it begins" % (where, name))
        while ends and ends[-1][0] <= begin:
            ends.pop()
        if ends and end > ends[-1][0]:
            raise Failure("%s: %s goes beyond the end of %s" % (where, name, ends[-1][1]))
        ends.append((end, name))


def inside(spans, outer):
    return [span for span in spans if outer[0] <= span[0] and span[1] <= outer[1] and span is not outer]


def check_trace(directory, ranks, layers=2, has_exchange=True):
    trace = read_trace(directory)
    if sorted(trace) != list(range(ranks)):
        raise Failure("a trace of ranks %s" % sorted(trace))
    for rank, lanes in trace.items():
        for (lane, _), spans in lanes.items():
            check_nesting(spans, "rank %d, lane %s" % (rank, lane))
        found = {lane for lane, _ in lanes}
        wanted = {"compute"} if ranks == 1 else {"compute", "FSDP", "agreement"} | ({"exchange"} if has_exchange else set())
        if found != wanted:
            raise Failure("rank %d has lanes %s" % (rank, sorted(found)))
        compute = next(spans for (lane, _), spans in lanes.items() if lane == "compute")
        steps = [span for span in compute if span[2].startswith("step ")]
        if [span[2] for span in steps] != ["step %d" % step for step in range(1, STEPS + 1)]:
            raise Failure("rank %d has %s" % (rank, [span[2] for span in steps]))
        for step in steps:
            names = [span[2] for span in inside(compute, step)]
            micro_batches = names.count("micro-batch 0")
            for name, count in (("micro-batch 0", 1), ("optimizer", 1), ("forward", names.count("backward")),
                                ("layer 0", 2 * names.count("forward")), ("layer %d" % (layers - 1), 2 * names.count("forward"))):
                if names.count(name) != count or not micro_batches:
                    raise Failure("rank %d, %s: %d times %s, not %d" % (rank, step[2], names.count(name), name, count))
    return trace


def check_summary(directory, ranks):
    with open(path(directory, "summary.json"), encoding="utf-8") as file:
        summary = json.load(file)
    total = sum(row["ms"] for row in summary["operators"])
    if abs(total - summary["step_ms"]) > 1e-6 * summary["step_ms"]:
        raise Failure("rows of %f ms, steps of %f ms" % (total, summary["step_ms"]))
    if len(summary["ranks"]) != ranks:
        raise Failure("%d ranks" % len(summary["ranks"]))
    for rank in summary["ranks"]:
        if min(rank[key] for key in ("fp32_flops_per_s", "bf16_flops_per_s", "copy_bytes_per_s")) <= 0:
            raise Failure("no roofline in %s" % rank)
        waited = {span["name"]: span["total_ns"] for span in rank["spans"] if span["name"].startswith("wait: ")}
        for lane in rank["lanes"]:
            if waited.get("wait: " + lane["name"], 0) != lane["waited_ns"]:
                raise Failure("rank %d waited %s; lane %s" % (rank["rank"], waited, lane))
            if lane["on_its_way_ns"] < lane["waited_ns"]:
                raise Failure("rank %d waits for nothing: %s" % (rank["rank"], lane))
    return summary


def check_against_trace(trace, summary):
    """The table's step is the trace's, and so is each operator's number of calls."""
    for rank in summary["ranks"]:
        compute = next(spans for (lane, _), spans in trace[rank["rank"]].items() if lane == "compute")
        steps = next(span for span in rank["spans"] if span["name"] == "step")
        if steps["total_ns"] != sum(end - begin for begin, end, name, _ in compute if name.startswith("step ")):
            raise Failure("steps of rank %d differ" % rank["rank"])
        for span in rank["spans"]:
            calls = sum(name == span["name"] for _, _, name, kind in compute if kind in ("operator", "wait"))
            if span["kind"] in (1, 3) and calls != span["calls"]:
                raise Failure("%s: %d calls in the trace, %d in the table" % (span["name"], calls, span["calls"]))


def expect_same(plain, recorded):
    logs = [[{key: record[key] for key in SAME} for record in tensors.read_log(path(name))] for name in (plain, recorded)]
    if logs[0] != logs[1] or len(logs[0]) != STEPS:
        raise Failure("recording changed the run: %s, %s" % tuple(logs))
    if tensors.read_model(path(plain)) != tensors.read_model(path(recorded)):
        raise Failure("recording changed the model")


def test_threads(name, ranks, overrides):
    plain, recorded = name + "_plain", name + "_recorded"
    EXPERTMESH(nano.arguments(plain, *overrides), ranks=ranks).expect_code(OK).expect_not("profile")
    if os.path.exists(path(plain, "profile")):
        raise Failure("a run without profile wrote one")
    run = EXPERTMESH(nano.arguments(recorded, *overrides, "profile=true"), ranks=ranks).expect_code(OK)
    run.expect("profile of %d steps on %d rank" % (STEPS, ranks), "experts backward", "roofline of a rank")
    with open(path(recorded, "profile", "summary.txt"), encoding="utf-8") as file:
        if file.read() not in run.out:
            raise Failure("summary.txt is not what was printed")
    trace = check_trace(recorded + "/profile", ranks, has_exchange="dist_config.ep_size=2" in overrides)
    check_against_trace(trace, check_summary(recorded + "/profile", ranks))
    expect_same(plain, recorded)


def test_processes():
    """Gloo; asked for by the environment, into a directory of its own."""
    EXPERTMESH(nano.arguments("processes_plain", *MESH), ranks=2).expect_code(OK)
    runs = finish_all(EXPERTMESH.start_processes(nano.arguments("processes", *MESH), 2, env={"EXPERTMESH_PROFILE": path("elsewhere")}))
    for run in runs:
        run.expect_code(OK)
    runs[0].expect("profile of 4 steps on 2 ranks")
    if runs[1].out:
        runs[1].fail("rank 1 prints too")
    trace = check_trace("elsewhere", 2)
    check_against_trace(trace, check_summary("elsewhere", 2))
    if os.path.exists(path("processes", "profile")):
        raise Failure("it was to be elsewhere")
    expect_same("processes_plain", "processes")


def test_environment():
    arguments = nano.arguments("environment", *MESH)
    EXPERTMESH(arguments, ranks=2, env={"EXPERTMESH_PROFILE": "0"}).expect_code(OK).expect_not("profile of")
    EXPERTMESH(arguments, ranks=2, env={"EXPERTMESH_PROFILE": "1"}).expect_code(OK).expect("profile of 4 steps on 2 ranks")
    check_trace("environment/profile", 2)


def test_overlap():
    """domino between processes: one slice's tokens are on their way while the experts work on the other's, in each direction."""
    with open(path("data", "long.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(dict(input_ids=[t % 15 for t in range(700)], labels=[t % 15 for t in range(700)])) + "\n" for _ in range(8))
    with open(path("data", "long.yaml"), "w", encoding="utf-8") as file:
        json.dump({"rows": {"path": path("data", "long.jsonl"), "source": "local", "converter": "tokenized"}}, file)
    arguments = nano.arguments("overlap", *MESH, "dist_config.ep_dispatcher=domino", "profile=true", "train_dataset=data/long.yaml", "cutoff_len=700",
                               "micro_batch_size=4")
    for run in finish_all(EXPERTMESH.start_processes(arguments, 2)):
        run.expect_code(OK)
    for rank, lanes in check_trace("overlap/profile", 2).items():
        compute = next(spans for (lane, _), spans in lanes.items() if lane == "compute")
        flights = [span for (lane, _), spans in lanes.items() if lane == "exchange" for span in spans]
        for name in ("experts", "experts backward"):
            work = [span for span in compute if span[2] == name]
            if not any(begin < span[1] and span[0] < end for begin, end, _, _ in flights for span in work):
                raise Failure("rank %d: nothing is on its way under %s" % (rank, name))


def test_other_commands():
    for arguments in (["score", "--model", "model", "--input", "data/tokens.jsonl"], ["generate", "--model", "model", "--prompt", "a"]):
        EXPERTMESH(arguments, env={"EXPERTMESH_PROFILE": "1"}).expect_code(USAGE).expect("EXPERTMESH_PROFILE is 1", "Unset it")
        EXPERTMESH(arguments + ["profile=true"]).expect_code(CONFIG).expect("profile has no effect")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        EXPERTMESH = product.Program(sys.argv[1], folder)
        nano.make_folder(folder)
        tests = Suite()
        tests.add_named("one thread", test_threads, "one", 1, nano.expert_parallel(1) + ["global_batch_size=2"])
        tests.add_named("two threads", test_threads, "two", 2, MESH)
        tests.add_named("two threads, eager, recompute off", test_threads, "plain", 2, MESH + ["enable_activation_checkpointing=false"])
        tests.add_named("two threads, mc2", test_threads, "mc2", 2, MESH + ["dist_config.ep_dispatcher=mc2"])
        tests.add_named("two threads, flat gathers", test_threads, "flat", 2, nano.expert_parallel(1) + ["dist_config.fsdp_implementation=custom"])
        tests.add(test_processes)
        tests.add(test_environment)
        tests.add(test_overlap)
        tests.add(test_other_commands)
        sys.exit(tests.run(sys.argv[2:]))
