#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes, started as launchers start them: the same results as rank threads, and every rank ends when one fails.

    tests/process/process_test.py EXPERTMESH [TEXT ...]
"""
import os
import signal
import socket
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import nano  # noqa: E402
import product  # noqa: E402
import tensors  # noqa: E402
from product import CONFIG, DATA, MODEL, OK, PEER, PREEMPTED, SETUP, Failure, finish_all  # noqa: E402
from suite import Suite  # noqa: E402

MESHES = [  # processes, overrides
    (2, []),
    (2, ["dist_config.name=fsdp2"]),
    (2, nano.expert_parallel(1)),
    (2, nano.expert_parallel(2)),
    (2, nano.expert_parallel(2) + ["bf16=true", "optim_config.name=adamw", "optim_config.master_weights=none"]),
    (2, nano.expert_parallel(2) + ["global_batch_size=8", "micro_batch_size=2"]),
    (2, nano.expert_parallel(2) + ["dist_config.ep_dispatcher=fused"]),
    (2, nano.expert_parallel(2) + ["dist_config.ep_dispatcher=fused", "dist_config.ep_dedup=false"]),
    (2, nano.expert_parallel(2) + ["dist_config.ep_dispatcher=domino"]),
    (3, ["dist_config.name=fsdp2"]),
    (4, nano.expert_parallel(2)),
    (4, nano.expert_parallel(4) + ["enable_activation_checkpointing=false"]),
    (4, nano.expert_parallel(4) + ["dist_config.ep_dispatcher=fused"]),
    (4, nano.expert_parallel(2) + ["dist_config.efsdp_size=1", "mp_replicate_size=2"]),
    (4, nano.expert_parallel(2) + ["dist_config.fsdp_implementation=custom", "dist_config.reshard_after_forward=false"]),
]
LONG = 1000000  # steps of a run that a test ends


def path(*parts):
    return os.path.join(EXPERTMESH.folder, *parts)


def has_logged(output_dir, steps):
    """For Started.wait_for: so many steps are in the log."""
    def condition():
        try:
            with open(path(output_dir, "trainer_log.jsonl"), encoding="utf-8") as file:
                return len(file.readlines()) >= steps
        except FileNotFoundError:
            return False
    return condition


def expect_same(threads, processes):
    """Losses, norms and the saved model, to the bit."""
    logs = [tensors.read_log(path(name)) for name in (threads, processes)]
    for column in ("step", "epoch", "loss", "grad_norm", "learning_rate", "tokens_seen", "expert_load_max_over_mean"):
        a, b = ([record[column] for record in log] for log in logs)
        if a != b:
            raise Failure("%s of threads %s, of processes %s" % (column, a, b))
    models = [tensors.read_model(path(name)) for name in (threads, processes)]
    if models[0] != models[1]:
        raise Failure("saved models differ; the largest difference is %s" % (tensors.largest_difference(*models),))
    for name in ("config.json", "model.safetensors"):
        contents = []
        for folder in (threads, processes):
            with open(path(folder, name), "rb") as file:
                contents.append(file.read())
        if contents[0] != contents[1]:
            raise Failure("%s differs" % name)


def test_mesh(number, size, overrides):
    threads, processes = "threads_%d" % number, "processes_%d" % number
    EXPERTMESH(nano.arguments(threads, *overrides), ranks=size).expect_code(OK).expect("(threads)")
    runs = finish_all(EXPERTMESH.start_processes(nano.arguments(processes, *overrides), size))
    for rank, run in enumerate(runs):
        run.expect_code(OK)
        if rank == 0:
            run.expect("%d (gloo)" % size, "done after 4 steps")
        elif run.out or run.err:
            run.fail("rank %d prints too" % rank)
    expect_same(threads, processes)


def test_mc2(size):
    """Rank by rank where threads read each other's memory: near the threads' losses, and the same bits each time."""
    overrides = nano.expert_parallel(size) + ["dist_config.ep_dispatcher=mc2"]
    names = ["mc2_%s_%d" % (kind, size) for kind in ("threads", "first", "second")]
    EXPERTMESH(nano.arguments(names[0], *overrides), ranks=size).expect_code(OK)
    for name in names[1:]:
        for run in finish_all(EXPERTMESH.start_processes(nano.arguments(name, *overrides), size)):
            run.expect_code(OK)
    expect_same(*names[1:])
    losses = [[record["loss"] for record in tensors.read_log(path(name))] for name in names[:2]]
    for step, (threads, processes) in enumerate(zip(*losses), 1):
        if abs(threads - processes) > 1e-5 * threads:
            raise Failure("step %d: loss %r with threads, %r with processes" % (step, threads, processes))


def test_auto(size):
    """Measured at start: all processes take the same dispatcher, and the resolved configuration names it."""
    name = "auto_%d" % size
    arguments = nano.arguments(name, *nano.expert_parallel(2), "dist_config.ep_dispatcher=auto")
    runs = finish_all(EXPERTMESH.start_processes(arguments, size))
    for run in runs:
        run.expect_code(OK)
    # Not domino: the 2048 tokens of a micro-batch would stay in one slice, and it would be fused.
    runs[0].expect("ep_dispatcher auto: ", "eager ", "fused ", "fused-no-dedup ", "mc2 ")
    with open(path(name, "config.resolved.yaml"), encoding="utf-8") as file:
        lines = dict(line.strip().split(": ") for line in file if "ep_d" in line)
    chosen = lines["ep_dispatcher"] + ("-no-dedup" if lines["ep_dedup"] == '"false"' else "")
    if "auto: %s;" % chosen not in runs[0].err:
        raise Failure("the resolved configuration says %s" % lines)


def start_with_names(names, size, output_dir, extra=None):
    """Processes whose places stand in other launchers' variables."""
    def env_of_rank(rank, variables):
        chosen = {key: variables[key] for key in ("MASTER_ADDR", "MASTER_PORT")}
        chosen.update(zip(names, (rank, size, rank, size)))
        chosen.update(extra or {})
        return chosen
    return EXPERTMESH.start_processes(nano.arguments(output_dir, *nano.expert_parallel(2)), size, env_of_rank=env_of_rank)


def test_slurm():
    for run in finish_all(start_with_names(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), 2, "slurm")):
        run.expect_code(OK)
    if len(tensors.read_log(path("slurm"))) != 4:
        raise Failure("not four steps")


def test_open_mpi():
    names = tuple("OMPI_COMM_WORLD_" + name for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))
    for run in finish_all(start_with_names(names, 2, "open_mpi")):
        run.expect_code(OK)
    if len(tensors.read_log(path("open_mpi"))) != 4:
        raise Failure("not four steps")


def test_launchers_disagree():
    """torchrun's variables left over in a Slurm job."""
    processes = start_with_names(("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), 2, "disagree", {"RANK": 0, "WORLD_SIZE": 4})
    for run in finish_all(processes):
        run.expect_code(SETUP).expect("launchers disagree", "torchrun", "Slurm", "of 4", "of 2").expect_within(10)
    nothing_is_left("disagree")


def test_slurm_without_address():
    run = EXPERTMESH(nano.arguments("no_address"), env={"SLURM_PROCID": "0", "SLURM_NTASKS": "2"})
    run.expect_code(SETUP).expect("MASTER_ADDR", "Slurm").expect_within(10)
    nothing_is_left("no_address")


def nothing_is_left(output_dir):
    if os.path.exists(path(output_dir, "config.json")):
        raise Failure("%s looks like a model" % output_dir)


def test_killed_rank(size, victim):
    """SIGKILL in mid-run: the others end within 5 s and say who is gone."""
    output_dir = "killed_%d_%d" % (size, victim)
    processes = EXPERTMESH.start_processes(nano.arguments(output_dir, *nano.expert_parallel(2), steps=LONG), size)
    processes[0].wait_for(has_logged(output_dir, 3), what="step 3")
    processes[victim].send(signal.SIGKILL)
    before = [p.start for p in processes]
    killed_at = product.time.monotonic()
    runs = finish_all(processes)
    for rank, run in enumerate(runs):
        if rank == victim:
            run.expect_code(-signal.SIGKILL)
            continue
        run.expect_code(PEER)
        # Rank 0 serves the store through which the name of the lost rank travels: when it goes, a closed connection may be
        # all that the others have.
        if victim != 0 or "Another rank has ended" not in run.err:
            run.expect("rank %d" % victim)
        took = before[rank] + run.seconds - killed_at
        if took > 5 * product.slowness():
            run.fail("ended %.1f s after the kill" % took)
    nothing_is_left(output_dir)


def test_failing_rank():
    """An error on one rank is what all ranks report, with its code."""
    processes = EXPERTMESH.start_processes(nano.arguments("failing", *nano.expert_parallel(2), steps=20), 4,
                                           env={"EXPERTMESH_FAULT": "train.backward:rank=2:hit=3:do=throw"})
    for run in finish_all(processes):
        run.expect_code(product.INTERNAL).expect("train.backward", "rank 2")
    nothing_is_left("failing")


def test_stopped_rank(victim):
    """A rank that does not come back (SIGSTOP) is named when dist_timeout is over; nobody waits longer."""
    output_dir = "stopped_%d" % victim
    processes = EXPERTMESH.start_processes(nano.arguments(output_dir, *nano.expert_parallel(2), "dist_timeout=2", steps=LONG), 2)
    processes[0].wait_for(has_logged(output_dir, 3), what="step 3")
    processes[victim].send(signal.SIGSTOP)
    try:
        run = processes[1 - victim].finish(30)
    finally:
        processes[victim].send(signal.SIGKILL)
        processes[victim].finish()
    run.expect_code(product.TIMEOUT).expect("rank %d" % victim)
    nothing_is_left(output_dir)


def test_config_differs(name, size, odd, overrides, code, words):
    """One rank was started with something else: all ranks say what, before training."""
    output_dir = "differs_" + name
    processes = EXPERTMESH.start_processes(nano.arguments(output_dir), size,
                                           arguments_of_rank=lambda rank: overrides if rank == odd else [])
    for run in finish_all(processes):
        run.expect_code(code).expect("rank 0", "rank %d" % odd, *words).expect_within(10)
    nothing_is_left(output_dir)


def test_rows_differ(command):
    """One rank reads another file: all ranks say so, and there is no output."""
    for rank, rows in enumerate(([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4]])):
        with open(path("%s_rows_%d.jsonl" % (command, rank)), "w", encoding="utf-8") as file:
            file.writelines('{"input_ids": %s}\n' % ids for ids in rows)
    output = command + "_differs.jsonl"
    processes = EXPERTMESH.start_processes([command, "--model", "model", "--output", output], 2,
                                           arguments_of_rank=lambda rank: ["--input", "%s_rows_%d.jsonl" % (command, rank)])
    for run in finish_all(processes):
        run.expect_code(DATA).expect("3 rows", "on rank 0", "2 rows", "on rank 1").expect_within(10)
    if os.path.exists(path(output)) or os.path.exists(path(output + ".tmp")):
        raise Failure("an output is left")


def test_world_size_differs():
    def env_of_rank(rank, variables):
        return {**variables, "WORLD_SIZE": 2 + rank}
    for run in finish_all(EXPERTMESH.start_processes(nano.arguments("sizes", "dist_timeout=20"), 2, env_of_rank=env_of_rank), 120):
        run.expect_code(SETUP)
    nothing_is_left("sizes")


def test_same_rank_twice():
    def env_of_rank(rank, variables):
        return {**variables, "RANK": 0 if rank == 0 else 1, "WORLD_SIZE": 3}
    runs = finish_all(EXPERTMESH.start_processes(nano.arguments("twice", "dist_timeout=8"), 3, env_of_rank=env_of_rank), 120)
    for run in runs:
        run.expect_code(SETUP)
    if not any("two processes are rank 1" in run.err for run in runs):
        raise Failure("nobody says that two processes are rank 1:\n%s" % "\n".join(map(str, runs)))
    nothing_is_left("twice")


def test_missing_rank():
    """A rank that never starts is named."""
    run = EXPERTMESH(nano.arguments("missing", "dist_timeout=2"),
                     env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(product.free_port())})
    run.expect_code(SETUP).expect("rank 1", "did not appear").expect_within(12)
    nothing_is_left("missing")


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        processes = EXPERTMESH.start_processes(nano.arguments("port", "dist_timeout=5"), 2, port=port)
        runs = finish_all(processes, 120)
    runs[0].expect_code(SETUP).expect(str(port), "in use").expect_within(10)
    runs[1].expect_code(SETUP).expect(str(port))
    nothing_is_left("port")


def test_model_not_there():
    """A fault that every rank finds alone is reported by each, with its own code."""
    processes = EXPERTMESH.start_processes(nano.arguments("no_model", "model=nowhere"), 2)
    for run in finish_all(processes):
        run.expect_code(MODEL).expect("nowhere").expect_within(10)


def test_interrupt(number, code, ranks_told):
    """A signal reaches all ranks, or one: all end after the same step, with the model saved and the same code."""
    output_dir = "interrupt_%d_%d" % (number, len(ranks_told))
    processes = EXPERTMESH.start_processes(nano.arguments(output_dir, *nano.expert_parallel(2), steps=LONG), 2)
    processes[0].wait_for(has_logged(output_dir, 3), what="step 3")
    for rank in ranks_told:
        processes[rank].send(number)
    runs = finish_all(processes)
    for run in runs:
        run.expect_code(code)
    runs[0].expect("stopped after")
    if not tensors.looks_complete(path(output_dir)):
        raise Failure("no model is saved")


def test_launcher_ends_the_others():
    """A launcher sends SIGTERM to the others when a rank has died: that is no preemption."""
    processes = EXPERTMESH.start_processes(nano.arguments("launcher_ends", *nano.expert_parallel(2), steps=LONG), 4)
    processes[0].wait_for(has_logged("launcher_ends", 3), what="step 3")
    processes[2].send(signal.SIGKILL)
    for rank in (0, 1, 3):
        processes[rank].send(signal.SIGTERM)
    runs = finish_all(processes)
    for rank in (0, 1, 3):
        runs[rank].expect_code(PEER).expect("rank 2").expect_not("preempted")
    nothing_is_left("launcher_ends")


def outputs_of(command, *more):
    """What a command writes for seven rows on one rank and on two processes: pairs of rows."""
    with open(path(command + ".jsonl"), "w", encoding="utf-8") as file:
        for length in range(2, 9):
            file.write('{"input_ids": %s}\n' % list(range(1, length + 1)))
    arguments = [command, "--model", "model", "--input", command + ".jsonl", *more, "--output"]
    names = [command + "_1.jsonl", command + "_2.jsonl"]
    EXPERTMESH(arguments + names[:1]).expect_code(OK)
    for run in finish_all(EXPERTMESH.start_processes(arguments + names[1:] + nano.expert_parallel(2), 2)):
        run.expect_code(OK)
    outputs = []
    for name in names:
        with open(path(name), encoding="utf-8") as file:
            outputs.append([tensors.json.loads(line) for line in file])
    if len(outputs[0]) != 7 or len(outputs[1]) != 7:
        raise Failure("%d and %d rows instead of 7" % (len(outputs[0]), len(outputs[1])))
    return zip(*outputs)


def test_score():
    """`score` over processes writes the same file as over one rank."""
    for a, b in outputs_of("score"):
        if max(abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"])) > 1e-5:
            raise Failure("log-probabilities differ: %s and %s" % (a, b))


def test_generate():
    """`generate` over processes too, and the lines are printed once."""
    for a, b in outputs_of("generate", "--temperature", "0.8", "--max-new-tokens", "5"):
        if a != b or not a["output_ids"]:
            raise Failure("answers differ: %s and %s" % (a, b))
    runs = finish_all(EXPERTMESH.start_processes(["generate", "--model", "model", "--input", "generate.jsonl"], 2))
    if [len(run.expect_code(OK).out.splitlines()) for run in runs] != [7, 0]:
        runs[1].fail("a rank that is not the first printed rows, or the first did not")
    if "greedy" not in runs[0].err or runs[1].err:
        runs[1].fail("a rank that is not the first told how tokens are chosen, or the first did not")


def main():
    global EXPERTMESH
    with tempfile.TemporaryDirectory(prefix="expertmesh_process_") as folder:
        nano.make_folder(folder)
        os.symlink("model", os.path.join(folder, "other"))
        EXPERTMESH = product.Program(sys.argv[1], folder)
        suite = Suite()
        for number, (size, overrides) in enumerate(MESHES):
            suite.add_named("same_as_threads_%d_%s" % (size, "_".join(overrides)), test_mesh, number, size, overrides)
        for size, victim in ((2, 0), (2, 1), (4, 0), (4, 3)):
            suite.add_named("killed_%d_of_%d" % (victim, size), test_killed_rank, size, victim)
        for name, size, odd, overrides, code, words in (
                ("rate", 2, 1, ["learning_rate=0.5"], CONFIG, ["learning_rate is 0.01 on rank 0 and 0.5 on rank 1"]),
                ("mesh", 4, 2, nano.expert_parallel(2), CONFIG, ["dist_config.ep_size is not given on rank 0 and 2 on rank 2"]),
                ("model", 2, 1, ["model=other"], CONFIG, ["model is model on rank 0 and other on rank 1"])):
            suite.add_named("differs_" + name, test_config_differs, name, size, odd, overrides, code, words)
        for command in ("score", "generate"):
            suite.add_named("rows_differ_" + command, test_rows_differ, command)
        for size in (2, 4):
            suite.add_named("auto_%d" % size, test_auto, size)
            suite.add_named("mc2_%d" % size, test_mc2, size)
        suite.add_named("stopped_0", test_stopped_rank, 0)
        suite.add_named("stopped_1", test_stopped_rank, 1)
        for number, code in ((signal.SIGINT, OK), (signal.SIGTERM, PREEMPTED)):
            suite.add_named("interrupt_all_%s" % number.name, test_interrupt, number, code, (0, 1))
            suite.add_named("interrupt_one_%s" % number.name, test_interrupt, number, code, (1,))
        for test in (test_slurm, test_open_mpi, test_launchers_disagree, test_slurm_without_address, test_failing_rank,
                     test_world_size_differs, test_same_rank_twice, test_missing_rank, test_port_in_use, test_model_not_there,
                     test_launcher_ends_the_others, test_score, test_generate):
            suite.add(test)
        return suite.run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
