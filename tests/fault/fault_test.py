#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a run: values that are not finite, ranks that throw, hang or die at every point, saves that are cut off at every
file operation, Ctrl-C, streams that are closed. What must hold: no rank updates alone, no half model looks whole, the job ends in
seconds, and the message names the first cause.

    tests/fault/fault_test.py EXPERTMESH [TEXT ...]
"""
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import nano  # noqa: E402
import product  # noqa: E402
import tensors  # noqa: E402
from product import CHECKPOINT, INTERNAL, NUMERICS, OK, PREEMPTED, TIMEOUT, Failure  # noqa: E402
from suite import Suite  # noqa: E402

EXPERT = "model.layers.0.mlp.experts.down_proj"
LONG = 1000000  # steps of a run that a test ends
POINTS = ("train.forward", "train.loss", "train.backward", "train.reduce", "train.update", "comm.post", "comm.wait")
SAVE_POINTS = ("ckpt.model.made_directory", "ckpt.model.made_file", "ckpt.model.before_sync", "ckpt.model.verified_file",
               "ckpt.model.before_commit", "ckpt.model.removed_config", "ckpt.model.renamed_file")
FILE_POINTS = ("file.open", "file.sync", "file.make_directories", "file.rename", "file.remove_file", "file.remove_tree",
               "file.sync_directory")


def path(*parts):
    return os.path.join(EXPERTMESH.folder, *parts)


def train(output_dir, *overrides, ranks=4, ep=2, steps=4, fault=None, limit=60):
    return EXPERTMESH(nano.arguments(output_dir, *nano.expert_parallel(ep), *overrides, steps=steps), ranks=ranks,
                      env={"EXPERTMESH_FAULT": fault} if fault else None, limit=limit)


def column(output_dir, name):
    return [record[name] for record in tensors.read_log(path(output_dir))]


def expect_equal(what, got, wanted):
    if got != wanted:
        raise Failure("%s: %s, not %s" % (what, got, wanted))


def expect_same_model(a, b):
    models = [tensors.read_model(path(name)) for name in (a, b)]
    if models[0] != models[1]:
        raise Failure("%s and %s differ: %s" % (a, b, tensors.largest_difference(*models)))


def expect_no_model(output_dir):
    for name in os.listdir(path(output_dir)) if os.path.isdir(path(output_dir)) else []:
        if name.endswith(".safetensors") or name == "config.json":
            raise Failure("%s is left in %s" % (name, output_dir))


# --- values that are not finite ---

GRADIENT = "train.gradient:name=%s:rank=1:hit=2:do=nan" % EXPERT


def test_nan_gradient_is_skipped_by_all():
    """NaN in one element of an expert's gradient on rank 1 in step 2: the weights are those after step 1."""
    run = train("nan_two", steps=2, fault=GRADIENT).expect_code(OK)
    run.expect("step 2 is skipped", EXPERT, "rank 1", "1 steps skipped")
    expect_equal("skipped_steps", column("nan_two", "skipped_steps"), [0, 1])
    train("nan_one", steps=1).expect_code(OK)
    expect_same_model("nan_two", "nan_one")
    # The moments are untouched too: with equal rows, five steps of which one is skipped are four steps.
    arguments = ["train_dataset=equal.yaml"]
    train("nan_five", *arguments, steps=5, fault=GRADIENT).expect_code(OK)
    train("nan_four", *arguments, steps=4).expect_code(OK)
    expect_same_model("nan_five", "nan_four")
    losses = column("nan_five", "loss")
    expect_equal("losses without the skipped step", losses[:1] + losses[2:], column("nan_four", "loss"))


def test_nan_gradient_does_not_move_the_schedule():
    schedule = ["lr_scheduler_config.name=linear", "lr_scheduler_config.warmup_steps=2"]
    train("schedule_clean", *schedule, steps=5).expect_code(OK)
    train("schedule_nan", *schedule, steps=5, fault=GRADIENT).expect_code(OK)
    clean, skipped = column("schedule_clean", "learning_rate"), column("schedule_nan", "learning_rate")
    expect_equal("rates", [skipped[0]] + skipped[2:], clean[:4])
    expect_equal("rate logged in the skipped step", skipped[1], clean[0])
    expect_equal("skipped_steps", column("schedule_nan", "skipped_steps"), [0, 1, 1, 1, 1])


def test_nan_gradient_stops_where_asked():
    run = train("nan_stop", "on_nonfinite=stop", steps=5, fault=GRADIENT).expect_code(NUMERICS)
    run.expect("step 2", EXPERT, "rank 1", "on_nonfinite is stop").expect_not("rank 0").expect_within(10)
    expect_equal("skipped_steps", column("nan_stop", "skipped_steps"), [0, 1])
    expect_no_model("nan_stop")


def test_nan_gradient_stops_every_process():
    processes = EXPERTMESH.start_processes(nano.arguments("nan_processes", *nano.expert_parallel(2), "on_nonfinite=stop", steps=5), 4,
                                           env={"EXPERTMESH_FAULT": GRADIENT})
    for run in product.finish_all(processes):
        run.expect_code(NUMERICS).expect("step 2", EXPERT, "rank 1")
    expect_no_model("nan_processes")


def test_nan_loss_ends_after_three_in_a_row():
    run = train("nan_loss", steps=20, fault="train.loss:name=loss:rank=2:hit=3+:do=nan").expect_code(NUMERICS)
    run.expect("step 3", "step 4", "step 5", "loss", "rank 2", "in a row").expect_not("step 6")
    expect_equal("skipped_steps", column("nan_loss", "skipped_steps"), [0, 0, 1, 2, 3])
    expect_no_model("nan_loss")


def test_nan_loss_stops_where_asked():
    run = train("nan_loss_stop", "on_nonfinite=stop", steps=20, fault="train.loss:name=loss:rank=0:hit=3+:do=nan")
    run.expect_code(NUMERICS).expect("step 3", "loss", "rank 0").expect_not("step 4")
    expect_no_model("nan_loss_stop")


def test_two_in_a_row_are_no_end():
    fault = ",".join("train.loss:name=loss:rank=0:hit=%d:do=nan" % hit for hit in (2, 3, 5, 6))
    train("nan_pairs", steps=7, fault=fault).expect_code(OK).expect("4 steps skipped")
    expect_equal("skipped_steps", column("nan_pairs", "skipped_steps"), [0, 1, 2, 2, 3, 4, 4])
    with open(path("nan_pairs", "trainer_log.jsonl"), encoding="utf-8") as file:
        for line in file:
            json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(Failure("%s in the log is no JSON" % name)))


# --- ranks that fail at every point ---

def test_throw(point):
    run = train("throw_" + point, steps=5, fault="%s:rank=1:hit=3:do=throw" % point)
    run.expect_code(INTERNAL).expect(point, "rank 1").expect_within(5)
    expect_no_model("throw_" + point)


def test_kill(point):
    run = train("kill_" + point, steps=5, fault="%s:rank=1:hit=3:do=kill" % point)
    run.expect_code(-signal.SIGKILL).expect_within(5)
    expect_no_model("kill_" + point)
    train("kill_" + point, steps=2).expect_code(OK)  # the same directory serves the next run


def test_exit(point):
    run = train("exit_" + point, steps=5, fault="%s:rank=1:hit=3:do=exit" % point)
    run.expect_code(1).expect_within(5)
    expect_no_model("exit_" + point)


def test_hang(point):
    """A rank that does not come back: the job ends when dist_timeout is over, and names it."""
    run = train("hang_" + point, "dist_timeout=2", steps=5, fault="%s:rank=1:hit=3:do=hang" % point)
    run.expect_code(TIMEOUT).expect("rank 1").expect_within(9)
    if point in ("train.loss", "train.reduce", "train.update"):  # once a step
        run.expect("waits in", ", step 3)", "rank 1 last finished")
    expect_no_model("hang_" + point)


def test_slow_rank_is_waited_for():
    train("slow", steps=3, fault="train.backward:rank=1:hit=2:do=sleep_ms=700").expect_code(OK)
    train("not_slow", steps=3).expect_code(OK)
    expect_same_model("slow", "not_slow")


# --- saves that are cut off ---

def test_kill_in_save(point, hits, is_first):
    """Killed at every hit in turn, over nothing or over an older model: the directory holds the old model, the new one, or none
    that looks whole; the next run needs no help."""
    name = "save_%s_%s" % (point, "first" if is_first else "again")
    arguments = dict(ranks=2, ep=2, steps=2)
    old = None
    for hit in range(1, hits + 1):
        output_dir = "%s_%d" % (name, hit)
        if not is_first:
            train(output_dir, "seed=1", "learning_rate=0.3", **arguments).expect_code(OK)
            old = tensors.read_model(path(output_dir))
        run = train(output_dir, **arguments, fault="%s:hit=%d:do=kill" % (point, hit))
        run.expect_code(-signal.SIGKILL, OK)
        if tensors.looks_complete(path(output_dir)):
            found = tensors.read_model(path(output_dir))
            if found != NEW_MODEL and found != old:
                run.fail("after a kill at %s, hit %d, the directory looks like a model and is neither the old nor the new one" % (point, hit))
        if run.code == OK:  # there are no more hits
            if hit == 1:
                run.fail("the point %s is never reached" % point)
            return
        train(output_dir, **arguments).expect_code(OK)
        if tensors.read_model(path(output_dir)) != NEW_MODEL:
            raise Failure("the run after a kill at %s, hit %d, saved something else" % (point, hit))
        for left in os.listdir(path(output_dir)):
            if ".tmp" in left:
                raise Failure("%s is left after the run that followed a kill at %s, hit %d" % (left, point, hit))


def test_throw_in_save(point):
    """An error at any point of the save on one rank: all end with it, nothing looks whole, nothing is left behind."""
    output_dir = "save_throw_" + point
    run = train(output_dir, ranks=2, steps=2, fault="%s:rank=0:do=throw" % point)
    run.expect_code(INTERNAL).expect(point).expect_within(5)
    if tensors.looks_complete(path(output_dir)) and tensors.read_model(path(output_dir)) != NEW_MODEL:
        run.fail("the directory looks like a model")
    train(output_dir, ranks=2, steps=2).expect_code(OK)


def test_file_too_large():
    """The file system refuses to go on writing: exit 13 with the file's name, and no half model."""
    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
    command = [EXPERTMESH.path] + nano.arguments("too_large", *nano.expert_parallel(2)) + ["--ranks", "2"]
    done = subprocess.run(command, cwd=EXPERTMESH.folder, env=EXPERTMESH.base_env, preexec_fn=limit_files, capture_output=True, text=True,
                          timeout=120, check=False)
    run = product.Run(command, done.returncode, done.stdout, done.stderr, 0, 0, 0).check_clean()
    run.expect_code(CHECKPOINT).expect("model.safetensors", "too large")
    expect_no_model("too_large")


def test_output_is_a_file():
    with open(path("a_file"), "w", encoding="utf-8") as file:
        file.write("mine\n")
    run = train("a_file", ranks=2).expect_code(CHECKPOINT)
    run.expect("a_file").expect_within(10)
    with open(path("a_file"), encoding="utf-8") as file:
        expect_equal("the file", file.read(), "mine\n")


# --- Ctrl-C and streams ---

def has_logged(output_dir, steps):
    def condition():
        try:
            return len(column(output_dir, "step")) >= steps
        except (FileNotFoundError, ValueError):
            return False
    return condition


def start_long(output_dir, ranks=2, stdout=None):
    started = EXPERTMESH.start(nano.arguments(output_dir, *nano.expert_parallel(2), steps=LONG), ranks=ranks, stdout=stdout)
    started.wait_for(has_logged(output_dir, 3), what="step 3")
    return started


def test_interrupt(number, code):
    output_dir = "interrupt_%d" % number
    started = start_long(output_dir)
    started.send(number)
    run = started.finish().expect_code(code).expect("ending after this step", "stopped after")
    if not tensors.looks_complete(path(output_dir)):
        run.fail("no model is saved")
    steps = column(output_dir, "step")
    run.expect("stopped after %d steps" % steps[-1])
    expect_equal("steps", steps, list(range(1, len(steps) + 1)))
    if code == OK:
        run.expect_not("error[")
    else:
        run.expect("error[app/preempted]", "SIGTERM", "is saved")


def test_interrupt_in_the_last_step():
    """Too late to stop anything: the run is complete."""
    started = EXPERTMESH.start(nano.arguments("interrupt_last", *nano.expert_parallel(2), steps=3), ranks=2,
                               env={"EXPERTMESH_FAULT": "train.backward:rank=1:hit=5:do=sleep_ms=3000"})
    started.wait_for(has_logged("interrupt_last", 2), what="step 2")
    started.send(signal.SIGTERM)
    started.finish().expect_code(OK).expect("ending after this step", "done after 3 steps")


def test_interrupt_before_training():
    """Nothing is there to be saved: the signal ends the process as it ends any other."""
    # Without tokens in the cache, the first file that is opened for writing is theirs.
    started = EXPERTMESH.start(nano.arguments("interrupt_early"), ranks=1,
                               env={"EXPERTMESH_FAULT": "file.open:hit=1:do=sleep_ms=20000", "EXPERTMESH_CACHE": path("cache_early")})
    started.wait_for(lambda: started.seconds() > 2, what="the start")
    started.send(signal.SIGTERM)
    started.finish().expect_code(-signal.SIGTERM).expect_within(15)
    expect_no_model("interrupt_early")


def test_interrupt_twice(number):
    name = "interrupt_twice_%d" % number
    started = EXPERTMESH.start(nano.arguments(name, *nano.expert_parallel(2), steps=LONG), ranks=2,
                               env={"EXPERTMESH_FAULT": "train.backward:rank=1:hit=4:do=sleep_ms=20000"})
    started.wait_for(has_logged(name, 3), what="step 3")
    started.send(number)
    started.wait_for(lambda: "ending after this step" in started.printed(), what="the answer to the first")
    started.send(number)
    started.finish().expect_code(128 + number).expect_within(15)
    expect_no_model(name)


def run_with_streams(output_dir, before_start, **streams):
    """Streams as a shell could leave them."""
    command = [EXPERTMESH.path] + nano.arguments(output_dir, *nano.expert_parallel(2)) + ["--ranks", "2"]
    process = subprocess.Popen(command, cwd=EXPERTMESH.folder, env=EXPERTMESH.base_env, preexec_fn=before_start, **streams)
    code = process.wait(timeout=120)
    expect_equal("exit code", code, OK)
    expect_equal("steps", column(output_dir, "step"), [1, 2, 3, 4])
    expect_equal("the model", tensors.read_model(path(output_dir)), tensors.read_model(path("streams_normal")))


def test_streams():
    train("streams_normal", ranks=2).expect_code(OK)

    def close(*numbers):
        def act():
            for number in numbers:
                os.close(number)
        return act
    run_with_streams("streams_no_stdout", close(1), stderr=subprocess.DEVNULL)
    run_with_streams("streams_none", close(0, 1, 2))
    with open("/dev/full", "w", encoding="utf-8") as full:
        run_with_streams("streams_full", None, stdout=full, stderr=full)
    reader, writer = os.pipe()
    os.close(reader)  # a pager that was left
    run_with_streams("streams_broken_pipe", None, stdout=writer, stderr=subprocess.DEVNULL)
    os.close(writer)


def test_token_cache_cannot_be_written():
    """Costs the next start some time and nothing else: a warning, not an error."""
    with open(path("no_folder"), "w", encoding="utf-8"):
        pass
    run = EXPERTMESH(nano.arguments("no_cache", steps=2), ranks=1, env={"EXPERTMESH_CACHE": path("no_folder")})
    run.expect_code(OK).expect("token cache cannot be written", "no_folder").expect_not("error[")


def test_second_run_in_the_same_directory():
    train("twice", steps=3).expect_code(OK)
    train("twice", steps=2).expect_code(OK)
    expect_equal("steps", column("twice", "step"), [1, 2, 3, 1, 2])
    train("once", steps=2).expect_code(OK)
    expect_same_model("twice", "once")


def prepare():
    nano.make_folder(EXPERTMESH.folder)
    with open(path("equal.jsonl"), "w", encoding="utf-8") as file:
        for _ in range(16):
            file.write(json.dumps({"input_ids": [3, 9, 6, 2, 10, 11], "labels": [-100, 9, 6, 2, 10, 11]}) + "\n")
    with open(path("equal.yaml"), "w", encoding="utf-8") as file:
        file.write("rows:\n  path: equal.jsonl\n  source: local\n  converter: tokenized\n")
    train("new_model", ranks=2, ep=2, steps=2).expect_code(OK)
    return tensors.read_model(path("new_model"))


def make_suite():
    suite = Suite()
    for test in (test_nan_gradient_is_skipped_by_all, test_nan_gradient_does_not_move_the_schedule, test_nan_gradient_stops_where_asked,
                 test_nan_gradient_stops_every_process, test_nan_loss_ends_after_three_in_a_row, test_nan_loss_stops_where_asked,
                 test_two_in_a_row_are_no_end):
        suite.add(test)
    for point in POINTS:
        for name, test in (("throw", test_throw), ("kill", test_kill), ("exit", test_exit), ("hang", test_hang)):
            suite.add_named("%s_%s" % (name, point), test, point)
    suite.add(test_slow_rank_is_waited_for)
    for point in SAVE_POINTS + FILE_POINTS:
        is_only_over_old = point in ("ckpt.model.removed_config", "file.remove_file")
        for is_first in (False,) if is_only_over_old else (True, False):
            suite.add_named("kill_in_save_%s_%s" % (point, "first" if is_first else "again"), test_kill_in_save, point, 40, is_first)
    # Every tensor of every rank is a write: a sample of them.
    suite.add_named("kill_in_save_file.write_first", test_kill_in_save, "file.write", 12, True)
    suite.add_named("kill_in_save_file.write_again", test_kill_in_save, "file.write", 12, False)
    for point in SAVE_POINTS:
        suite.add_named("throw_in_save_" + point, test_throw_in_save, point)
    for number, code in ((signal.SIGINT, OK), (signal.SIGTERM, PREEMPTED)):
        suite.add_named("interrupt_%s" % number.name, test_interrupt, number, code)
        suite.add_named("interrupt_twice_%s" % number.name, test_interrupt_twice, number)
    for test in (test_file_too_large, test_output_is_a_file, test_interrupt_in_the_last_step, test_interrupt_before_training, test_streams, test_token_cache_cannot_be_written,
                 test_second_run_in_the_same_directory):
        suite.add(test)
    return suite


def main():
    global EXPERTMESH, NEW_MODEL
    with tempfile.TemporaryDirectory(prefix="expertmesh_fault_") as folder:
        EXPERTMESH = product.Program(sys.argv[1], folder)
        NEW_MODEL = prepare()
        return make_suite().run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
